# SPDX-License-Identifier: Apache-2.0
"""Benchmark of each stage of a worker, repeated on one window of chunks.

It drives a worker's transport with the results of its own contributions. Times are CPU times, so
other processes matter little; send and receive include the kernel's part, and on loopback sending
includes the delivery.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
from typing_extensions import TypedDict

from benchmarks.common import BenchError, Spread, spread_of
from hosts.net.offload import PLAIN
from hosts.net.udp import Endpoint
from hosts.worker.transport import WorkerTransport
from protocol.exponents import Exponents
from protocol.header import LANE_BYTES, Batch, Op
from protocol.plan import Address, StreamPlan, WorkerPlan

_ROUNDS = 5
_ARRIVAL_SECONDS = 1.0


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
    taken: dict[str, list[float]] = {}
    with _bench(lanes, window, plain) as bench:
        for _ in range(_ROUNDS):
            end = time.perf_counter() + seconds / _ROUNDS
            cycles = [bench.cycle()]
            while time.perf_counter() < end:
                cycles.append(bench.cycle())
            for name in cycles[0]:
                mean = sum(cycle[name] for cycle in cycles) / len(cycles)
                taken.setdefault(name, []).append(mean / window)
    return [_stage(name, spread_of(times), LANE_BYTES * lanes) for name, times in taken.items()]


def _stage(name: str, seconds: Spread, chunk_bytes: int) -> Stage:
    rate = 1 / seconds["median"] if seconds["median"] else None
    return {
        "stage": name,
        "gb_per_second": None if rate is None else chunk_bytes * rate / 1e9,
        "chunks_per_second": rate,
        "seconds_per_chunk": seconds,
    }


def _timed(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


class _Bench:
    """One worker with a window of chunks, and two sockets."""

    def __init__(self, lanes: int, window: int, sender: Endpoint, receiver: Endpoint) -> None:
        self._window, self._sender, self._receiver = window, sender, receiver
        server = Address(receiver.ipv4, receiver.port)
        stream = StreamPlan(stream=0, node=1, sender=0, window=window)
        plan = WorkerPlan(
            job=1, epoch=1, world=1, lanes=lanes, rank=0, streams=(stream,), servers=(server,),
            counts=(window,),
        )  # fmt: skip
        rng = np.random.default_rng(1)
        self._values = rng.uniform(-1, 1, (window, lanes)).astype(np.float32)
        self._copy = np.empty_like(self._values)
        self._chunks, self._widths = np.arange(window), np.full(window, lanes)
        self._transport = WorkerTransport(plan, Exponents(window, 1))
        self._now, self._polled = 0.0, list[Batch]()
        self.cycle()  # exponent rounds

    def cycle(self) -> dict[str, float]:
        """Sums the window once; returns the CPU time of each stage."""
        transport, values = self._transport, self._values
        taken = {"copy": _timed(lambda: np.copyto(self._copy, values))}
        taken["submit"] = _timed(
            lambda: transport.submit(self._chunks, values, self._widths, self._copy)
        )
        stages = "contribute", "send", "receive", "take results"
        taken |= dict.fromkeys(stages, 0.0)
        while not transport.idle:
            self._now += 0.001
            polled = self._polled
            taken["contribute"] += _timed(self._poll)
            for batch in polled:
                taken["send"] += _timed(partial(self._sender.send, batch))
                taken["receive"] += self._drain(len(batch))
                batch.headers["version_op"] += Op.RESULT - Op.CONTRIBUTE
                taken["take results"] += _timed(partial(transport.on_packets, self._now, batch))
        taken["take results"] += _timed(transport.take_completed)
        return taken

    def _poll(self) -> None:
        batch, _ = self._transport.poll(self._now)
        self._polled[:] = [] if batch is None else [batch]

    def _drain(self, missing: int) -> float:
        """Receives all that was sent; returns its CPU time."""
        sent, taken = missing, 0.0
        late = time.monotonic() + _ARRIVAL_SECONDS
        while missing > 0:
            began = time.thread_time()
            batch: Batch | None = self._receiver.receive()
            taken += time.thread_time() - began
            if batch is not None:
                missing -= len(batch)
            elif time.monotonic() > late:
                raise BenchError(
                    f"{missing} of {sent} datagrams did not arrive on loopback: the receive"
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
