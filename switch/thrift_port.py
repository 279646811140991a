# SPDX-License-Identifier: Apache-2.0
"""A listener at the port of BMv2's Thrift server, which hangs up.

There is no Thrift here. But tools wait until something listens at the port they gave, to know that
the switch has started, even when they go on to use P4Runtime alone.
"""

from __future__ import annotations

import logging
import socket
import threading

log = logging.getLogger("switch")


class ThriftPort:
    """Listens until it is closed. Raises OSError if the port is taken."""

    def __init__(self, port: int) -> None:
        self._port = port
        try:
            self._socket = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise OSError(
                error.errno, f"cannot listen on --thrift-port {port}: {error.strerror}"
            ) from error
        self._thread = threading.Thread(target=self._run, name="thrift", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            connection.close()
            log.warning(
                "a Thrift client was turned away from port %d: this target has P4Runtime only",
                self._port,
            )

    def close(self) -> None:
        """Ends the listener."""
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() alone does not
        self._socket.close()
        self._thread.join()
