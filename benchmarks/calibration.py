# SPDX-License-Identifier: Apache-2.0
"""What packets cost hosts and servers of this machine, as a topology's `costs` has it.

*Hosts*: a whole worker on one core over loopback (``benchmarks.throughput``), with chunks of
1 KiB and of 8 KiB: client, transport, socket and kernel. For each chunk it sends a frame and gets
one, so a frame takes half of a chunk's CPU time, and its bytes what the two sizes differ by.
*Servers*: how many payloads a server's core takes in, when it sends each sum to all
workers (``benchmarks.turns``).

All are times that a core computed, so what others have of it changes them only as far as it spoils
caches and makes trains of packets shorter or longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import throughput, turns
from benchmarks.common import LEAST_BUSY, Message, Schedule, Spread, machine, pinned, two_cores
from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES
from protocol.pipeline import TALL

SMALL, LARGE = 256, 2048  # lanes of a chunk
_WINDOW = 1024
_ELEMENTS = 1 << 22  # of the tensor that is summed
_FRAMES = 2  # of a chunk, one each way
_WORKERS_SHARE = 0.5  # of the time: each turn has processes to start
_FASTEST = 10**12  # bit/s that a topology's rates go to


@dataclass(frozen=True)
class Calibration:
    """Seconds that a host takes for a frame and for each of its bytes, bit/s of payloads that a
    server takes (None: more than a topology can say), and how all that was found."""

    per_packet: float
    per_byte: float
    server_rate: int | None
    found: Message

    def snippet(self) -> str:
        """As a topology file takes it."""
        lines = [
            f"# rackhub calibrate, on {self.found['machine']['cpu']}",
            "costs:",
            f"  host_per_packet: {1e6 * self.per_packet:.4f} us",
            f"  host_per_byte: {1e9 * self.per_byte:.6f} ns",
        ]
        if self.server_rate is not None:
            lines.append(f"  server_rate: {self.server_rate / 1e9:.3f} Gbit/s")
        return "\n".join(lines) + "\n"

    def message(self) -> Message:
        """As JSON takes it."""
        return {
            "costs": {
                "host_per_packet": self.per_packet,
                "host_per_byte": self.per_byte,
                "server_rate": self.server_rate,
            },
            **self.found,
        }


def frame(lanes: int) -> int:
    """Bytes of the frame of a chunk."""
    return OVERHEAD + HEADER_BYTES + 4 * lanes


def of_frames(small: float, large: float) -> tuple[float, float]:
    """Seconds of a frame and of a byte, by what chunks of SMALL and LARGE lanes take.

    None of the two is below 0: where noise would have it so, the other takes it all.
    """
    least, most = small / _FRAMES, large / _FRAMES
    per_byte = max(0.0, (most - least) / (frame(LARGE) - frame(SMALL)))
    per_packet = least - per_byte * frame(SMALL)
    if per_packet < 0:
        return 0.0, least / frame(SMALL)
    return per_packet, per_byte


def of_server(chunks: float) -> int | None:
    """bit/s of payloads, by the chunks/s of SMALL lanes that a server takes in."""
    rate = 8 * 4 * SMALL * chunks
    return round(rate) if rate < _FASTEST else None


def calibrate(
    seconds: float, rounds: int, within: float, say: Callable[[str], None]
) -> Calibration:
    """Measures it, taking turns; seconds: of each of 6 turns in a round. within: seconds of all
    together, which a round of each that is needed in any case may exceed. Raises BenchError."""
    measured, other = two_cores()
    schedule = Schedule(rounds * (2 + turns.TURNS), within, say)
    took: dict[int, list[float]] = {SMALL: [], LARGE: []}
    busy: list[float] = []
    with pinned(measured):
        for _ in schedule.rounds(rounds, 2, _WORKERS_SHARE):
            for lanes, taken in took.items():
                schedule.turn(f"a worker's core, chunks of {4 * lanes:,} bytes")
                window = throughput.largest_window(lanes, _WINDOW)
                with throughput.worker(_ELEMENTS, lanes, window, False, other) as one:
                    run = one.run(seconds)
                taken.append(run.computed / run.chunks)
                busy.append(run.busy)
    options = turns.Options(lanes=SMALL, rounds=rounds, seconds=seconds)
    served = turns.run(options, schedule)
    small, large = (Spread.of(took[lanes]) for lanes in (SMALL, LARGE))
    per_packet, per_byte = of_frames(small.median, large.median)
    chunks = served[TALL]["chunks_per_second"]
    found = {
        "machine": machine(),
        "seconds": seconds,
        "rounds": {"worker": len(took[SMALL]), "server": served["rounds"]},
        "valid": served["valid"] and min(busy) >= LEAST_BUSY,
        "worker": [_told(lanes, spread) for lanes, spread in ((SMALL, small), (LARGE, large))],
        "busy": min(busy),
        "server": {
            "chunk_bytes": 4 * SMALL,
            "workers": served["workers"],
            "chunks_per_second": chunks,
        },
    }
    return Calibration(per_packet, per_byte, of_server(chunks["median"]), found)


def _told(lanes: int, spread: Spread) -> Message:
    return {"chunk_bytes": 4 * lanes, "seconds_per_chunk": spread.message()}
