# SPDX-License-Identifier: Apache-2.0
"""Sends digest lists and idle timeouts when they are due.

    notifier = Notifier(device)
    notifier.start()
    notifier.stop()

One thread sleeps until a packet leaves a first message, a list is full, a client has changed
something, or a timer expires. Without it `Device.notify` sends what is due when it is called.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switch.p4runtime.device import Device

log = logging.getLogger(__name__)

# Idle timeouts that expire within this time of each other are sent together.
_LEAST_MS = 1


class Notifier:
    """The notifying thread of one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="p4rt-notices", daemon=True)
        self._stopping = False

    def start(self) -> None:
        """Starts to send."""
        self._device.notice_to(self._wake)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        self._device.notice_to(-1)
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while not self._stopping:
            try:
                wait_us = self._device.notify()
            except Exception:
                log.exception("a notice could not be made")
                wait_us = None
            poll.poll(None if wait_us is None else max(_LEAST_MS, -(-wait_us // 1000)))
            try:
                os.eventfd_read(self._wake)
            except BlockingIOError:
                continue  # the timer expired
