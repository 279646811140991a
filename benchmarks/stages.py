# SPDX-License-Identifier: Apache-2.0
"""Benchmark of each stage of a worker in isolation, repeated on one window of chunks.

It calls a worker's own functions in the order in which a chunk passes them, on arrays of the same
size. Times are CPU times, so other processes matter little; send and receive include the kernel's
part, and on loopback sending includes the delivery.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from typing_extensions import TypedDict

from benchmarks.common import BenchError, Spread, spread_of
from hosts.data.submissions import Submission
from hosts.native.quantization import exponents_in, keep_and_dequantise, quantise_to
from hosts.net.offload import PLAIN
from hosts.net.udp import Endpoint
from hosts.worker.chunk_queues import Queue, entries_of
from hosts.worker.contributions import Contributions
from hosts.worker.slots import WAITING, Slots
from hosts.worker.verification import wrong
from protocol.header import LANE_BYTES, Batch, Op, peer_array
from protocol.plan import Address, StreamPlan, WorkerPlan

_ROUNDS = 5
_ARRIVAL_SECONDS = 1.0
_EXPONENT = 2  # of the scale; values are below 1
_NONE = np.zeros(0, np.intp)


class Stage(TypedDict):
    """A stage's cost in CPU time."""

    stage: str
    """Name of the stage."""
    gb_per_second: float | None
    """GB (10^9 bytes) of gradients per second; null if the time is too short to measure."""
    chunks_per_second: float | None
    """Chunks per second; null if the time is too short to measure."""
    seconds_per_chunk: Spread
    """Seconds per chunk."""


def stages(lanes: int, window: int, plain: bool, seconds: float) -> list[Stage]:
    """Measures every stage, and copying gradients in memory, within `seconds` in total.

    Raises:
        BenchError: Datagrams were lost on loopback.
    """
    with _bench(lanes, window, plain) as bench:
        works = bench.works()
        share = seconds / _ROUNDS / len(works)
        taken: dict[str, list[float]] = {name: [] for name, _ in works}
        # Interleaved, so that load on the machine affects all stages alike.
        for _ in range(_ROUNDS):
            for name, work in works:
                taken[name].append(_mean(work, share) / window)
    # A worker quantises while it builds packets.
    packets = [a - b for a, b in zip(taken["packetise"], taken["quantise"], strict=True)]
    taken["packetise"] = [max(0.0, one) for one in packets]
    return [_stage(name, spread_of(times), LANE_BYTES * lanes) for name, times in taken.items()]


def _stage(name: str, seconds: Spread, chunk_bytes: int) -> Stage:
    rate = 1 / seconds["median"] if seconds["median"] else None
    return {
        "stage": name,
        "gb_per_second": None if rate is None else chunk_bytes * rate / 1e9,
        "chunks_per_second": rate,
        "seconds_per_chunk": seconds,
    }


def _mean(work: Callable[[], float], seconds: float) -> float:
    """Returns the mean of the times `work` returns, calling it for about `seconds`, at least
    once."""
    end = time.perf_counter() + seconds
    times = [work()]
    while time.perf_counter() < end:
        times.append(work())
    return sum(times) / len(times)


def _timed(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


class _Bench:
    """One worker's window of chunks, and two sockets."""

    def __init__(self, lanes: int, window: int, sender: Endpoint, receiver: Endpoint) -> None:
        self._window, self._sender, self._receiver = window, sender, receiver
        server = Address(receiver.ipv4, receiver.port)
        stream = StreamPlan(stream=0, node=1, sender=0, window=window)
        self._plan = plan = WorkerPlan(
            job=1, epoch=1, world=1, lanes=lanes, rank=0, streams=(stream,), servers=(server,),
            counts=(window,),
        )  # fmt: skip
        rng = np.random.default_rng(1)
        self._values = rng.uniform(-1, 1, (window, lanes)).astype(np.float32)
        self._copy = np.empty_like(self._values)
        self._rows = np.arange(window)
        self._slots = slots = Slots(plan)
        queue = Queue()
        no, zeros = np.zeros(window, np.bool_), np.zeros(window, np.int64)
        own, unfit = exponents_in(self._values)
        entries = entries_of(
            self._rows, self._rows, zeros, no, own, unfit, np.full(window, lanes), 0, 0
        )
        queue.push(entries, Submission(self._values, self._copy))
        slots.enter(0, queue, plan)
        slots.stage[self._rows] = WAITING
        slots.exponent[self._rows] = _EXPONENT
        self._contributions = Contributions(plan, slots, peer_array([server.pair()]))
        self._contributed = self._contributions.packets(_NONE, self._rows)
        self._result = self._contributed.select(self._rows)
        self._result.headers["version_op"] += Op.RESULT - Op.CONTRIBUTE
        self._exponents = np.full(window, _EXPONENT, np.int16)

    def works(self) -> list[tuple[str, Callable[[], float]]]:
        """Returns each stage as a function that processes the window and returns its CPU time."""
        values, exponents = self._values, self._exponents
        plan, slots, rows, result = self._plan, self._slots, self._rows, self._result
        words = np.empty_like(result.payloads)
        places, flags = slots.places(rows), slots.unfit[rows]

        def dequantised() -> None:
            kept = slots.result_words
            keep_and_dequantise(plan.codec, result.payloads, exponents, 1, places, kept, rows)

        def quantised() -> None:
            quantise_to(plan.codec, places, exponents, flags, 1, words)

        return [
            ("copy", lambda: _timed(lambda: np.copyto(self._copy, values))),
            ("quantise", lambda: _timed(quantised)),
            ("packetise", lambda: _timed(lambda: self._contributions.packets(_NONE, rows))),
            ("send", self._send),
            ("receive", self._receive),
            ("check", lambda: _timed(lambda: wrong(plan, slots, result, rows, False))),
            ("dequantise", lambda: _timed(dequantised)),
        ]

    def _send(self) -> float:
        taken = _timed(lambda: self._sender.send(self._contributed))
        self._drain()
        return taken

    def _receive(self) -> float:
        self._sender.send(self._contributed)
        return self._drain()

    def _drain(self) -> float:
        """Receives all that was sent; returns its CPU time."""
        missing, taken = self._window, 0.0
        late = time.monotonic() + _ARRIVAL_SECONDS
        while missing > 0:
            began = time.thread_time()
            batch: Batch | None = self._receiver.receive()
            taken += time.thread_time() - began
            if batch is not None:
                missing -= len(batch)
            elif time.monotonic() > late:
                raise BenchError(
                    f"{missing} of {self._window} datagrams did not arrive on loopback: the receive"
                    f" buffer holds {self._receiver.receive_buffer} bytes; try a smaller --window"
                )
            else:
                self._sender.flush()
        return taken


@contextmanager
def _bench(lanes: int, window: int, plain: bool) -> Iterator[_Bench]:
    offload = PLAIN if plain else None
    home = ("127.0.0.1", 0)
    with (
        Endpoint(home, lanes=lanes, offload=offload) as sender,
        Endpoint(home, lanes=lanes, offload=offload) as receiver,
    ):
        yield _Bench(lanes, window, sender, receiver)
