# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the embedded target without interfaces: programs, table sizes, compilation.

Figures are per second of the calling thread's CPU time.
"""

from __future__ import annotations

import ctypes
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import TypedDict

from benchmarks.common import BenchError, Spread, spread_of
from benchmarks.forwarding import contenders, traffic
from controller.p4rt.connection import DeviceConnection
from controller.p4rt.entries import Entity, P4Info, insertion
from switch.codegen import generate
from switch.compiler import build_program
from switch.loader import load_program
from switch.p4runtime.device import Device
from switch.pipeline import KeyElement, Pipeline
from switch.pipeline.abi import Output
from testbed.targets import DEVICE_ID

_PROGRAMS = ("aggregation", "aggregation_jumbo", "aggregation_headers", "router")
_FEW, _MANY = 10, 10_000
_MASKS = 16
_BATCH_BYTES = 1 << 18  # of frames per call, fits the cache
_MOST_FRAMES = 256
_OUTPUT_BYTES = 1 << 20
_WINDOW = 512
_KEY_AT, _KEY_FRAME = 14, 64
_ETHERTYPES = {"exact": 0x88B5, "lpm": 0x88B6, "ternary": 0x88B7}
_TABLES = {"exact": "by_value", "lpm": "by_prefix", "ternary": "by_mask"}


class Batch:
    """Frames that pass a pipeline repeatedly."""

    def __init__(self, ports: Sequence[int], frames: Sequence[bytes]) -> None:
        size = len(frames[0])
        self.count = len(frames)
        self._bytes = np.frombuffer(b"".join(frames), np.uint8).copy().reshape(-1, size)
        self._ports = (ctypes.c_uint32 * self.count)(*ports)
        self._offsets = (ctypes.c_uint64 * self.count)(*range(0, size * self.count, size))
        self._lengths = (ctypes.c_uint32 * self.count)(*([size] * self.count))
        self._outputs = (Output * (4 * self.count))()
        self._out = (ctypes.c_uint8 * _OUTPUT_BYTES)()

    def numbers(self, offset: int) -> Any:
        """Returns a writable view of the 32-bit field at `offset`: (frames,), big-endian."""
        return self._bytes[:, offset : offset + 4].view(">u4")[:, 0]

    def through(self, pipeline: Pipeline) -> float:
        """Runs the frames through a pipeline; returns CPU seconds. Raises BenchError if the number
        of frames that came out differs."""
        produced = ctypes.c_size_t()
        data = ctypes.cast(self._bytes.ctypes.data, ctypes.c_char_p)
        now = pipeline.now_us()
        began = time.thread_time()
        result = pipeline.native.sw_inject(
            pipeline.handle, self.count, self._ports, data, self._offsets, self._lengths, now,
            self._outputs, len(self._outputs), self._out, len(self._out), ctypes.byref(produced),
        )  # fmt: skip
        taken = time.thread_time() - began
        if result != 0 or produced.value != self.count:
            raise BenchError(
                f"{pipeline.program.name}: {produced.value} packets came out of {self.count}"
                f" (result {result})"
            )
        return taken


@dataclass
class _Sums:
    """Contributions of all workers with increasing sequence numbers."""

    pipeline: Pipeline
    batch: Batch
    first: int = 0

    def turn(self) -> float:
        """Runs one batch; returns CPU seconds per packet."""
        numbers = self.first + np.arange(self.batch.count) // traffic.PORTS
        for offset in (traffic.NUMBER_AT, traffic.NUMBER_AT + 4):  # sequence and chunk number
            self.batch.numbers(offset)[:] = numbers
        self.first += self.batch.count // traffic.PORTS
        return self.batch.through(self.pipeline) / self.batch.count


@dataclass
class _Lookups:
    """Packets whose keys all have entries; each key recurs after a few calls."""

    pipeline: Pipeline
    batch: Batch
    keys: Any
    first: int = 0

    def turn(self) -> float:
        """Runs one batch; returns CPU seconds per packet."""
        chosen = (self.first + np.arange(self.batch.count)) % len(self.keys)
        self.batch.numbers(_KEY_AT)[:] = self.keys[chosen]
        self.first += self.batch.count
        return self.batch.through(self.pipeline) / self.batch.count


class TableTimes(TypedDict):
    """Cost of a packet whose lookup hits one of few, or one of many, entries."""

    few_seconds: float
    """Median CPU seconds per packet with few entries."""
    many_seconds: float
    """The same with many."""
    ratio: Spread
    """Many to few, if packets hit all entries."""
    ratio_of_few: Spread
    """Many to few, if packets hit as few entries as in the small table, which touches no more
    memory."""


class CompilationTimes(TypedDict):
    """Times of translating and compiling a program."""

    seconds: float
    """Wall seconds with an empty cache."""
    cpu_seconds: float
    """CPU seconds with an empty cache, compilers included."""
    again_seconds: float
    """Wall seconds of loading it from the cache."""


def programs(rounds: int, seconds: float) -> dict[str, float]:
    """Measures packets per second of CPU time through each program, by name."""
    figures = {}
    for name in _PROGRAMS:
        lanes = 8 * traffic.LANES if name == "aggregation_jumbo" else traffic.LANES
        path = contenders.ROUTER if name == "router" else contenders.build(name)
        with _loaded(path) as pipeline:
            frames = [traffic.packet(worker, lanes) for worker in range(traffic.PORTS)]
            count = max(traffic.PORTS, min(_MOST_FRAMES, _BATCH_BYTES // len(frames[0])) & ~3)
            ports = [1 + at % traffic.PORTS for at in range(count)]
            batch = Batch(ports, [frames[at % traffic.PORTS] for at in range(count)])
            sums = _Sums(pipeline, batch)
            figures[name] = 1 / _median(sums.turn, rounds, seconds)
    return figures


def tables(rounds: int, seconds: float) -> dict[str, TableTimes]:
    """Measures packets with few and with many entries, by match kind."""
    program = load_program(contenders.OWN_PROGRAMS / "tables.json")
    figures: dict[str, TableTimes] = {}
    for kind in _TABLES:
        with Pipeline(program) as few, Pipeline(program) as many:
            spread = _lookups(many, kind, _MANY)
            narrow = _Lookups(many, spread.batch, spread.keys[:_FEW])
            works = [_lookups(few, kind, _FEW), spread, narrow]
            turns = [[_median(work.turn, 1, seconds) for work in works] for _ in range(rounds)]
        figures[kind] = {
            "few_seconds": statistics.median(turn[0] for turn in turns),
            "many_seconds": statistics.median(turn[1] for turn in turns),
            "ratio": spread_of([turn[1] / turn[0] for turn in turns]),
            "ratio_of_few": spread_of([turn[2] / turn[0] for turn in turns]),
        }
    return figures


def compilation(names: Sequence[str] = _PROGRAMS) -> dict[str, CompilationTimes]:
    """Measures translating and compiling each program, and loading it from the cache.

    Raises:
        BenchError: It is compiled a second time.
    """
    figures: dict[str, CompilationTimes] = {}
    for name in names:
        path = contenders.ROUTER if name == "router" else contenders.build(name)
        times = []
        with tempfile.TemporaryDirectory() as folder, _cache(folder):
            for _ in range(2):
                began, computed = time.perf_counter(), _computed()
                build_program(generate(load_program(path.with_suffix(".json"))))
                times.append((time.perf_counter() - began, _computed() - computed))
            made = len(list(Path(folder).rglob("*.so")))
        (first, computed), (again, _) = times
        figures[name] = {"seconds": first, "cpu_seconds": computed, "again_seconds": again}
        if made != 1:
            raise BenchError(f"{name} was compiled into {made} libraries")
    return figures


def _computed() -> float:
    """Returns the CPU time of this process and of compilers it ran."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@contextmanager
def _cache(folder: str) -> Iterator[None]:
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = before


@contextmanager
def _loaded(path: Path) -> Iterator[Pipeline]:
    """Loads a program on the in-process target, with the entries its packets need."""
    p4info = P4Info.load(path.with_suffix(".p4info.txtpb"))
    device = Device(DEVICE_ID)
    connection = DeviceConnection(path.name, device)
    try:
        connection.open()
        connection.push(p4info.message, path.with_suffix(".json").read_bytes())
        entities: list[Entity]
        if path == contenders.ROUTER:
            entities = contenders.routes(p4info)
        else:
            entities = contenders.tree(p4info, _WINDOW)
        connection.write([insertion(one) for one in entities])
        assert device.pipeline is not None
        yield device.pipeline
    finally:
        connection.close()
        device.close()


def _lookups(pipeline: Pipeline, kind: str, entries: int) -> _Lookups:
    """Installs random entries in a table; returns packets for them."""
    rng = np.random.default_rng(entries)
    table, action = f"IngressPipeline.{_TABLES[kind]}", "IngressPipeline.forward"
    masks = 0xFFFF << np.arange(_MASKS)  # of sixteen bits each
    keys: dict[int, int] = {}
    while len(keys) < entries:
        value = int(rng.integers(1 << 32))
        at = len(keys)
        key: KeyElement = value
        if kind == "lpm":
            length = 16 + at % 13  # up to 28
            value &= 0xFFFFFFFF << (32 - length) & 0xFFFFFFFF
            key = (value, length)
        elif kind == "ternary":
            mask = int(masks[at % _MASKS]) & 0xFFFFFFFF
            value &= mask
            key = (value, mask)
        if value in keys:
            continue
        keys[value] = at
        pipeline.insert(table, [key], action, [1 + at % 4], 1 if kind == "ternary" else 0)
    frame = bytes(12) + _ETHERTYPES[kind].to_bytes(2, "big") + bytes(_KEY_FRAME - 14)
    batch = Batch([1] * _MOST_FRAMES, [frame] * _MOST_FRAMES)
    order = rng.permutation(np.fromiter(keys, np.uint32))
    return _Lookups(pipeline, batch, order)


def _median(turn: Callable[[], float], rounds: int, seconds: float) -> float:
    """Returns the median of rounds, each the mean of turns for `seconds`."""
    turn()
    means = []
    for _ in range(rounds):
        end, taken = time.perf_counter() + seconds, [turn()]
        while time.perf_counter() < end:
            taken.append(turn())
        means.append(sum(taken) / len(taken))
    return statistics.median(means)
