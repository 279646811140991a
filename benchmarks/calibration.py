# SPDX-License-Identifier: Apache-2.0
"""Calibrates the `costs` of a topology: what packets cost hosts and servers of this machine.

*Hosts*: a whole worker (client, transport, socket, kernel) on one core over loopback
(``benchmarks.throughput``), with chunks of 1 KiB and of 8 KiB. It sends and receives one frame per
chunk, so a frame takes half of a chunk's CPU time; the two sizes give the time per byte.
*Servers*: the payload rate that a server's core receives while it sends each sum to all workers
(``benchmarks.server_core``).

All are CPU times, so other processes affect them only through caches and packet train lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from typing_extensions import TypedDict

from benchmarks import server_core, throughput
from benchmarks.common import (
    LEAST_BUSY,
    MachineFacts,
    Schedule,
    Spread,
    machine,
    pinned,
    spread_of,
    two_cores,
)
from protocol.frames import OVERHEAD
from protocol.header import LANE_BYTES, packet_bytes

SMALL, LARGE = 256, 2048  # lanes of a chunk
_WINDOW = 1024
_ELEMENTS = 1 << 22  # of the summed tensor
_FRAMES = 2  # per chunk, one each way
_WORKERS_SHARE = 0.5  # of the time: their turns start processes
_FASTEST = 10**12  # bit/s, the highest rate of a topology file


class Rounds(TypedDict):
    """Numbers of rounds, without those left out."""

    worker: int
    server: int


class WorkerCost(TypedDict):
    """Cost of a chunk for a worker."""

    chunk_bytes: int
    """Bytes of its gradients."""
    seconds_per_chunk: Spread
    """CPU seconds of a chunk, a frame each way."""


class ServerRate(TypedDict):
    """Rate of a server's core."""

    chunk_bytes: int
    """Bytes of a chunk's gradients."""
    workers: int
    """Workers that send to it."""
    chunks_per_second: Spread
    """Chunks received per second of CPU time."""


class Measurements(TypedDict):
    """The measurements behind the costs."""

    machine: MachineFacts
    """Where they were made."""
    seconds: float
    """Seconds of each turn."""
    rounds: Rounds
    """Rounds that were made."""
    valid: bool
    """True if what was measured was the bottleneck in all turns."""
    worker: list[WorkerCost]
    """Costs for a worker, small chunks first."""
    busy: float
    """The least share of its core that a worker used, 0 to 1."""
    server: ServerRate
    """Rate of a server."""


class Costs(TypedDict):
    """The `costs` of a topology file."""

    host_per_packet: float
    """Seconds per frame."""
    host_per_byte: float
    """Seconds per byte."""
    server_rate: int | None
    """A server's payload rate in bit/s; null above what a topology file allows."""


class CalibrationReport(Measurements):
    """The costs, and the measurements behind them."""

    costs: Costs
    """What a topology file takes."""


@dataclass(frozen=True)
class Calibration:
    """Host seconds per frame and per byte, a server's payload rate (bit/s; None: above what a
    topology file allows), and the measurements behind them."""

    per_packet: float
    per_byte: float
    server_rate: int | None
    found: Measurements

    def snippet(self) -> str:
        """Returns the `costs` group of a topology file."""
        lines = [
            f"# rackhub calibrate, on {self.found['machine']['cpu']}",
            "costs:",
            f"  host_per_packet: {1e6 * self.per_packet:.4f} us",
            f"  host_per_byte: {1e9 * self.per_byte:.6f} ns",
        ]
        if self.server_rate is not None:
            lines.append(f"  server_rate: {self.server_rate / 1e9:.3f} Gbit/s")
        return "\n".join(lines) + "\n"

    def message(self) -> CalibrationReport:
        """Returns the JSON object."""
        return {
            "costs": {
                "host_per_packet": self.per_packet,
                "host_per_byte": self.per_byte,
                "server_rate": self.server_rate,
            },
            **self.found,
        }


def frame(lanes: int) -> int:
    """Returns the frame size of a chunk, in bytes."""
    return OVERHEAD + packet_bytes(lanes)


def of_frames(small: float, large: float) -> tuple[float, float]:
    """Returns seconds per frame and per byte from those per chunk of SMALL and LARGE lanes.

    If noise would make one negative, it is 0 and the other explains all of the time.
    """
    least, most = small / _FRAMES, large / _FRAMES
    per_byte = max(0.0, (most - least) / (frame(LARGE) - frame(SMALL)))
    per_packet = least - per_byte * frame(SMALL)
    if per_packet < 0:
        return 0.0, least / frame(SMALL)
    return per_packet, per_byte


def of_server(chunks: float) -> int | None:
    """Returns a server's payload rate (bit/s) from its rate of chunks of SMALL lanes."""
    rate = 8 * 4 * SMALL * chunks
    return round(rate) if rate < _FASTEST else None


def calibrate(
    seconds: float, rounds: int, within: float, say: Callable[[str], None]
) -> Calibration:
    """Measures the costs, alternating between cases.

    Args:
        seconds: Of each of 6 turns in a round.
        within: Limit of the total time in seconds; at least one round is measured in any case.

    Raises:
        BenchError
    """
    measured, other = two_cores()
    schedule = Schedule(rounds * (2 + server_core.TURNS), within, say)
    took: dict[int, list[float]] = {SMALL: [], LARGE: []}
    busy: list[float] = []
    with pinned(measured):
        for _ in schedule.rounds(rounds, 2, _WORKERS_SHARE):
            for lanes, taken in took.items():
                schedule.turn(f"a worker's core, chunks of {LANE_BYTES * lanes:,} bytes")
                window = throughput.largest_window(lanes, _WINDOW)
                with throughput.worker(_ELEMENTS, lanes, window, False, other) as one:
                    run = one.run(seconds)
                taken.append(run.computed / run.chunks)
                busy.append(run.busy)
    options = server_core.Options(lanes=SMALL, rounds=rounds, seconds=seconds)
    served = server_core.run(options, schedule)
    small, large = (spread_of(took[lanes]) for lanes in (SMALL, LARGE))
    per_packet, per_byte = of_frames(small["median"], large["median"])
    chunks = served["tall"]["chunks_per_second"]
    found: Measurements = {
        "machine": machine(),
        "seconds": seconds,
        "rounds": {"worker": len(took[SMALL]), "server": served["rounds"]},
        "valid": served["valid"] and min(busy) >= LEAST_BUSY,
        "worker": [
            {"chunk_bytes": LANE_BYTES * lanes, "seconds_per_chunk": spread}
            for lanes, spread in ((SMALL, small), (LARGE, large))
        ],
        "busy": min(busy),
        "server": {
            "chunk_bytes": 4 * SMALL,
            "workers": served["workers"],
            "chunks_per_second": chunks,
        },
    }
    return Calibration(per_packet, per_byte, of_server(chunks["median"]), found)
