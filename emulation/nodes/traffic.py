# SPDX-License-Identifier: Apache-2.0
"""Sends or discards UDP packets that belong to no job (the fault ``load``).

    python -m emulation.nodes.traffic send ADDRESS --rate BIT/S --mtu BYTES [--busy S --idle S]
    python -m emulation.nodes.traffic discard

Both run until SIGTERM. The second prints a line once it takes packets.
"""

from __future__ import annotations

import argparse
import itertools
import math
import signal
import socket
import time

from protocol.ethernet import HEADER as ETHERNET_HEADER
from specs.background import BURST, PORT

_IP_AND_UDP = 28  # bytes of their headers
_QUIET = 0.2  # seconds without a packet: none is under way
_LATE = 0.1  # seconds after which packets that could not be sent are left out
_RECEIVE_BUFFER = 1 << 12  # bytes: packets are dropped in the kernel, most of them unread


def discard() -> None:
    """Takes packets, so that no ICMP error answers them; after SIGTERM until none comes."""
    over = False

    def end(*_: object) -> None:
        nonlocal over
        over = True

    signal.signal(signal.SIGTERM, end)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of several flows to a host
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        taker.bind(("", PORT))
        taker.settimeout(_QUIET)
        print("ready", flush=True)
        while True:
            try:
                taker.recv(1)
            except TimeoutError:
                if over:
                    return


def send(address: str, rate: float, mtu: int, busy: float = math.inf, idle: float = 0.0) -> None:
    """Sends packets of `mtu` bytes to an address, for `busy` seconds and not for `idle` seconds in
    turn.

    What the interface's queue has no room for is dropped. rate: bit/s of frames, from the Ethernet
    header on.
    """
    payload = bytes(mtu - _IP_AND_UDP)
    spacing = 8 * (mtu + ETHERNET_HEADER) / rate
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        # Other flows from here, and what discards those to here, have this port, too.
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sender.bind(("", PORT))
        sender.connect((address, PORT))
        sender.setblocking(False)
        began = time.monotonic()
        for turn in itertools.count():
            begins = began + turn * (busy + idle) if turn else began
            for number in itertools.count():
                due = begins + number * BURST * spacing
                if due >= begins + busy:
                    break
                time.sleep(max(0.0, due - time.monotonic()))
                if time.monotonic() - due < _LATE:
                    _burst(sender, payload)


def _burst(sender: socket.socket, payload: bytes) -> None:
    for _ in range(BURST):
        try:
            sender.send(payload)
        except OSError:  # full, or the link is down
            return


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("discard")
    sending = commands.add_parser("send")
    sending.add_argument("address")
    sending.add_argument("--rate", type=float, required=True)
    sending.add_argument("--mtu", type=int, required=True)
    sending.add_argument("--busy", type=float, default=math.inf)
    sending.add_argument("--idle", type=float, default=0.0)
    given = parser.parse_args()
    if given.command == "discard":
        discard()
    else:
        send(given.address, given.rate, given.mtu, given.busy, given.idle)


if __name__ == "__main__":
    main()
