# SPDX-License-Identifier: Apache-2.0
"""Listens on the port of BMv2's Thrift server and hangs up.

This target has no Thrift. But tools take a listener on the port they gave as the sign that the
switch has started, even when they use P4Runtime alone afterwards.
"""

from __future__ import annotations

import logging
import socket
import threading

log = logging.getLogger("switch")


class ThriftPort:
    """A listener on a TCP port. Raises OSError if the port is taken."""

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
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept(), unlike close() alone
        self._socket.close()
        self._thread.join()
