# SPDX-License-Identifier: Apache-2.0
"""Background traffic: packets of a host that belong to no job, and only occupy links."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from protocol.ethernet import HEADER as ETHERNET_HEADER
from protocol.frames import OVERHEAD, Interface, envelope
from simulation.links.trains import SECOND, Train
from simulation.nodes.host import HostNode
from specs.background import BURST, PORT
from topologies.model.addressing import HostInterface

__all__ = ["BackgroundFlow", "is_background"]

_UDP = 17
_PROTOCOL, _TARGET_PORT = 23, 36  # offsets in a frame


class BackgroundFlow:
    """UDP packets from a host to an address, at a constant rate or by turns.

    mtu: bytes of an IP packet; all are as long.
    rate: bit/s of frames from the Ethernet header on.
    busy, idle: ps in turn; idle 0: always busy.
    """

    def __init__(
        self, host: HostNode, target: int, mtu: int, rate: int, busy: int = 0, idle: int = 0
    ) -> None:
        self._host, self._rate, self._busy, self._idle = host, rate, busy, idle
        self._length = mtu + ETHERNET_HEADER
        self._end: HostInterface = host.interfaces[0]
        mac, gateway = (
            bytes.fromhex(one.replace(":", "")) for one in (self._end.mac, self._end.gateway_mac)
        )
        wire = Interface(mac, gateway, int(self._end.ipv4))
        header = envelope(wire, PORT, (target, PORT), self._length - OVERHEAD)
        self._frames = np.tile(np.frombuffer(header, np.uint8), (BURST, 1))
        self._over = False

    def begin(self, at: int, until: int) -> None:
        """Sends between two times (ps); call at the host."""
        self._host.tasks.thread(self._run, "background", (at, until)).start()

    def stop(self) -> None:
        """Sends no more; call at the host."""
        self._over = True

    def _run(self, at: int, until: int) -> None:
        whole = self._busy + self._idle
        while at < until:
            ends = min(until, at + self._busy) if self._idle else until
            number = 0
            while (due := at + self._time(number)) < ends:
                self._sleep(due)
                if self._over:
                    return
                count = 1
                while count < BURST and at + self._time(number + count) < ends:
                    count += 1
                now = np.full(count, self._host.now, np.int64)
                lengths = np.full(count, self._length, np.int64)
                train = Train(now, self._frames[:count], lengths)
                self._host.transmit([(self._end.number, train)])
                number += count
            at = at + whole if self._idle else until

    def _time(self, number: int) -> int:
        """Returns when a packet leaves, since the first of its period."""
        return number * self._length * 8 * SECOND // self._rate

    def _sleep(self, until: int) -> None:
        if until > self._host.now:
            self._host.tasks.sleep((until - self._host.now) / SECOND)


def is_background(train: Train) -> npt.NDArray[np.bool_]:
    """Returns which packets of a train are background traffic."""
    frames = train.frames
    if train.stored < _TARGET_PORT + 2:
        return np.zeros(len(train), np.bool_)
    found: npt.NDArray[np.bool_] = frames[:, _PROTOCOL] == _UDP
    found &= (frames[:, _TARGET_PORT] == PORT >> 8) & (frames[:, _TARGET_PORT + 1] == PORT & 0xFF)
    return found
