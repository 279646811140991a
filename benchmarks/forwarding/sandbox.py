# SPDX-License-Identifier: Apache-2.0
"""The first process of the benchmark's sandbox: ``python -m benchmarks.forwarding.sandbox``.

Creates the links, runs the contenders on them in turn for several rounds, and prints each turn's
measurements as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from benchmarks.common import BenchError, pin, two_cores
from benchmarks.forwarding import times
from benchmarks.forwarding.contenders import Contender, Name, contenders, running
from benchmarks.forwarding.native import Ends
from benchmarks.forwarding.traffic import PORTS, Mode
from emulation.network.namespaces import SandboxError, settle

SWITCH_ENDS = [f"s{n}" for n in range(1, PORTS + 1)]
WORKER_ENDS = [f"w{n}" for n in range(1, PORTS + 1)]
_OFFLOADS_OFF = "tx off rx off sg off tso off gso off gro off tx-udp-segmentation off"
_WARM_SECONDS = 0.1
_WARM_MOST_SECONDS = 5.0
_LOOK_SECONDS = 0.005
_LOOKED_AT = 8  # checked frames
_WINDOW = 504
_KERNEL_BYTES = 2560  # of a socket's buffer, per packet of 1 KiB
_BUFFER = 8 << 20
_SO_RCVBUFFORCE, _IPV4 = 33, 0x0800


@dataclass(frozen=True)
class Turn:
    """A contender's turn in a mode: packets and payload bytes received; wall seconds, and those
    that its process computed, that its busiest thread did, that it was waiting (at most), and that
    its core was idle; packets sent and lost; seconds that the load was sending, and that other
    processes had its core."""

    contender: Name
    mode: Mode
    round: int
    packets: int
    bytes: int
    seconds: float
    computed: float
    busiest: float
    blocked: float
    idle: float
    sent: int
    lost: int
    load_sending: float = 0.0
    load_waited: float = 0.0


def links(offloads: bool) -> None:
    """Creates a pair of interfaces per port; BMv2 needs offloads off before it starts. Raises
    BenchError."""
    lines = []
    for switch, worker in zip(SWITCH_ENDS, WORKER_ENDS, strict=True):
        lines.append(f"ip link add {switch} type veth peer name {worker}")
        for name in (switch, worker):
            if not offloads:
                lines.append(f"ethtool -K {name} {_OFFLOADS_OFF} >/dev/null")
            lines.append(f"ip link set {name} arp off up")
    _shell(lines)


def no_links() -> None:
    """Deletes the pairs: the only way to restore all default offloads."""
    _shell([f"ip link del {switch}" for switch in SWITCH_ENDS])


def _shell(lines: list[str]) -> None:
    result = subprocess.run(["sh", "-exc", "\n".join(lines)], capture_output=True, text=True)
    if result.returncode != 0:
        trace = "\n".join(result.stderr.strip().splitlines()[-3:])
        raise BenchError(f"the links cannot be made:\n{trace}")


def window() -> int:
    """Returns the window of a port in packets: what a switch's socket holds here."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as one:
        try:
            one.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        except PermissionError:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        holds = one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // _KERNEL_BYTES
    return min(_WINDOW, holds)


def load_cores(allowed: Iterable[int], measured: int, first: int) -> list[int]:
    """Returns one, two or four cores for the load, starting with `first`, without the measured one
    and its hyperthread siblings."""
    near = {measured, *times.siblings(measured)}
    more = [core for core in sorted(allowed) if core != first and core not in near]
    found = [first, *more][:PORTS]
    return found[: 1 << len(found).bit_length() - 1]


def turns(
    those: list[Contender],
    modes: list[Mode],
    rounds: int,
    seconds: float,
    loading: Sequence[int] = (),
) -> Iterator[Turn]:
    """Yields the turns of all contenders in each of their modes, for several rounds.

    Args:
        loading: Cores for the load, by default all that are free.
    """
    cores = two_cores()
    loading = loading or load_cores(os.sched_getaffinity(0), *cores)
    pin(cores[1])
    widest = window()
    layout = ""
    for number in range(rounds):
        for mode in modes:  # compared turns run close together in time
            for one in those:
                if mode not in one.modes():
                    continue
                if layout != _layout(one):
                    if layout:
                        no_links()
                    layout = _layout(one)
                    links(layout != "bare")
                yield _turn(one, mode, number, seconds, cores, loading, widest)


def _layout(one: Contender) -> str:
    """Returns the link layout it needs; a change recreates the links."""
    return {"bmv2": "bare", "linux": "routed"}.get(one.kind, "offloads")


def _turn(
    one: Contender,
    mode: Mode,
    number: int,
    seconds: float,
    cores: tuple[int, int],
    loading: Sequence[int],
    widest: int,
) -> Turn:
    load = one.traffic(mode, widest)
    with (
        Ends(WORKER_ENDS, load, loading) as ends,
        running(one, load, SWITCH_ENDS, cores) as spent_so_far,
    ):
        _look(one, mode, ends)
        warmed, most = 0, time.monotonic() + _WARM_MOST_SECONDS
        while warmed <= PORTS * one.first_uses(load) and time.monotonic() < most:
            warmed += ends.run(_WARM_SECONDS).received
        before, idle = spent_so_far(), times.idle(cores[0])
        counts = ends.run(seconds)
        after, idle = spent_so_far(), times.idle(cores[0]) - idle
        ends.run(0)
        if counts.received == 0 or counts.strange > counts.received // 1000:
            raise BenchError(
                f"{one.name} ({mode}): {counts.received} packets came back as they should,"
                f" {counts.strange} frames not, {counts.lost} were lost"
            )
    spent = [
        (ran - before.get(thread, (0.0, 0.0))[0], waited - before.get(thread, (0.0, 0.0))[1])
        for thread, (ran, waited) in after.items()
    ]
    computed = sum(ran for ran, _ in spent)
    # A process is idle only while all of its threads wait.
    blocked = min(counts.seconds - ran - waited for ran, waited in spent)
    blocked = max(0.0, min(blocked, counts.seconds - computed))
    return Turn(
        one.name, mode, number, counts.received, counts.bytes, counts.seconds, computed,
        max(ran for ran, _ in spent), blocked, idle, counts.sent, counts.lost,
        counts.sending, counts.waited,
    )  # fmt: skip


def _look(one: Contender, mode: Mode, ends: Ends) -> None:
    """Checks the first packets that the first worker gets. Raises BenchError if one is wrong."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as looking:
        looking.bind((WORKER_ENDS[0], _IPV4))
        ends.run(_LOOK_SECONDS)
        ends.run(0)
        looking.setblocking(False)
        for at in range(_LOOKED_AT):
            try:
                frame = looking.recv(1 << 17)
            except BlockingIOError as error:
                if at:
                    return
                raise BenchError(f"{one.name} ({mode}): nothing came back") from error
            wrong = one.wrong(frame, mode)
            if wrong is not None:
                raise BenchError(f"{one.name} does not do what {mode} asks: {wrong}")


def main() -> int:
    """Runs the turns of the command line; errors go to standard error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forwarding.sandbox")
    parser.add_argument("--contender", action="append", default=[])
    parser.add_argument("--mode", action="append", default=[])
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--load-core", type=int, action="append", default=[])
    options = parser.parse_args()
    try:
        settle()
        measured = turns(
            contenders(options.contender),
            options.mode,
            options.rounds,
            options.seconds,
            options.load_core,
        )
        for turn in measured:
            print(json.dumps(asdict(turn)), flush=True)
    except (BenchError, SandboxError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
