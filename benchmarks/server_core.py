# SPDX-License-Identifier: Apache-2.0
"""Benchmark of a server's core against minimal ones that receive the same packets.

All are driven as in a server process (``hosts.net.driver.drive``) and alternate within one run: the
server's state machine, tall and wide, which sends every result to every worker; an adder, which
only adds payloads to an array; and an echo, a server whose work takes no time.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import numpy as np
from typing_extensions import TypedDict

from benchmarks.common import (
    LEAST_BUSY,
    BenchError,
    MachineFacts,
    Schedule,
    Spread,
    Stopwatch,
    machine,
    pinned,
    spread_of,
    two_cores,
)
from benchmarks.load import EPOCH, JOB, NODE, Shared, Traffic, send
from hosts.net.driver import Counters, Machine, drive
from hosts.net.offload import available
from hosts.net.udp import Endpoint
from hosts.server.state import ServerState
from protocol.header import Batch
from protocol.optimizer_plan import OptimizerPlan
from protocol.plan import Address, Child, RootStream, ServerPlan
from protocol.server_pipelines import Pipeline

Core = Literal["tall", "wide", "adder", "echo"]
CORES: dict[Core, str] = {
    "tall": "which sums",
    "wide": "which sums another way",
    "adder": "which only adds",
    "echo": "which only answers",
}
"""What is measured, in this order, and how it is announced: the server by its pipelines, then what
it is compared with."""
TURNS = len(CORES)  # per round
_WARM_SECONDS = 0.1
_DRAIN_SECONDS = 5.0
_MODEL_BYTES = 4 << 20
_MOST_WINDOW = 256


@dataclass(frozen=True)
class Options:
    """Options of a run. seconds: of each turn; ablate: parts of its work the server skips."""

    workers: int = 8
    lanes: int = 256
    optimizer: OptimizerPlan | None = None
    ablate: tuple[str, ...] = ()
    rounds: int = 7
    seconds: float = 0.5


class Adder:
    """A server that only adds contributions."""

    def __init__(self, lanes: int) -> None:
        self._sums = np.zeros((1, lanes), np.int32)

    def on_packets(self, now: float, batch: Batch) -> None:
        """Adds the payloads of a batch to one array, a row each."""
        if len(batch) > len(self._sums):
            self._sums = np.zeros((len(batch), batch.payloads.shape[1]), np.int32)
        self._sums[: len(batch)] += batch.payloads

    def poll(self, now: float) -> tuple[Batch | None, float]:
        """Returns nothing to send."""
        return None, float("inf")


class Echo:
    """A server that returns packets unchanged: as much to receive and send, no work."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []

    def on_packets(self, now: float, batch: Batch) -> None:
        """Keeps the batch to return it. Later packets may overwrite its buffers, which does not
        matter as no one reads the contents."""
        self._batches.append(batch)

    def poll(self, now: float) -> tuple[Batch | None, float]:
        """Returns the batches received."""
        batches, self._batches = self._batches, []
        return (Batch.concatenate(batches) if batches else None), float("inf")


class _CreditedMachine:
    """A machine that credits packets to the load before processing them, so that more packets are
    waiting when it is done."""

    def __init__(self, machine: Machine, counters: Counters, begun: int, shared: Any) -> None:
        self._machine, self._counters = machine, counters
        self._begun, self._shared = begun, shared
        self.poll = machine.poll

    def on_packets(self, now: float, batch: Batch) -> None:
        """Credits the batch, then passes it on."""
        self._shared.received = self._counters.received - self._begun
        self._machine.on_packets(now, batch)


@dataclass
class Turn:
    """A machine's chunks per second of CPU time, and its core's shares of time: busy, in the
    kernel, and used by other processes."""

    rate: float
    busy: float
    kernel: float
    others: float


class CoreRates(TypedDict):
    """A machine's measurements."""

    chunks_per_second: Spread
    """Chunks received per second of CPU time."""
    busy: float
    """Median share of its core that it used of what others left, 0 to 1."""
    kernel: Spread
    """Share of its CPU time in the kernel, 0 to 1."""
    others: float
    """Highest share of the core that other processes used, 0 to 1."""


class ServerReport(TypedDict):
    """What a server's core does, tall and wide, beside an adder and an echo."""

    workers: int
    """Workers that send."""
    lanes: int
    """Elements of a chunk."""
    chunks: int
    """Chunks of the model."""
    window: int
    """Chunks of a worker in flight."""
    rounds: int
    """Rounds that there was time for."""
    optimizer: str | None
    """The optimizer that the server runs."""
    ablated: list[str]
    """Parts of its work that the server skips."""
    machine: MachineFacts
    """Where it was measured."""
    tall: CoreRates
    wide: CoreRates
    adder: CoreRates
    echo: CoreRates
    server_to_adder: Spread
    """Ratio of rates in the same round, as those below; the server is tall."""
    server_to_echo: Spread
    echo_to_adder: Spread
    tall_to_wide: Spread
    valid: bool
    """True if each was the bottleneck of its turns."""


def run(options: Options, schedule: Schedule | None = None) -> ServerReport:
    """Measures all machines and returns the JSON report; `rounds` counts those the schedule had
    time for. Raises BenchError."""
    if not available().segment:
        raise BenchError(
            f"no UDP segmentation offload here ({available().reason}); without it the load cannot"
            " outpace the server"
        )
    mine, other = two_cores()
    with Endpoint(("127.0.0.1", 0), lanes=options.lanes) as endpoint:
        traffic = _traffic(options, endpoint, other)
        with _load(traffic) as (control, shared), pinned(mine):
            ports = control.recv()
            turns = _turns(options, traffic, endpoint, ports, control, shared, schedule)
    rates = {name: _rates(measured) for name, measured in turns.items()}
    return {
        "workers": options.workers,
        "lanes": options.lanes,
        "chunks": traffic.chunks,
        "window": traffic.window,
        "rounds": len(turns["tall"]),
        "optimizer": None if options.optimizer is None else str(options.optimizer),
        "ablated": list(options.ablate),
        "machine": machine(),
        "tall": rates["tall"],
        "wide": rates["wide"],
        "adder": rates["adder"],
        "echo": rates["echo"],
        "server_to_adder": _ratio(turns["tall"], turns["adder"]),
        "server_to_echo": _ratio(turns["tall"], turns["echo"]),
        "echo_to_adder": _ratio(turns["echo"], turns["adder"]),
        "tall_to_wide": _ratio(turns["tall"], turns["wide"]),
        "valid": all(one["busy"] >= LEAST_BUSY for one in rates.values()),
    }


def _rates(turns: list[Turn]) -> CoreRates:
    return {
        "chunks_per_second": spread_of([turn.rate for turn in turns]),
        "busy": statistics.median(turn.busy for turn in turns),
        "kernel": spread_of([turn.kernel for turn in turns]),
        "others": max(turn.others for turn in turns),
    }


def _ratio(these: list[Turn], those: list[Turn]) -> Spread:
    if not all(turn.rate for turn in those):
        raise BenchError("a turn was over before its core was free; use more --seconds")
    return spread_of([one.rate / other.rate for one, other in zip(these, those, strict=True)])


def _traffic(options: Options, endpoint: Endpoint, core: int) -> Traffic:
    """Returns traffic whose window fits the receive buffer, as workers' windows do."""
    most = min(_MOST_WINDOW, endpoint.capacity() // options.workers)
    window = 1 << max(0, most.bit_length() - 1)
    chunks = max(2 * window, _MODEL_BYTES // (4 * options.lanes) // (2 * window) * 2 * window)
    return Traffic(options.workers, chunks, options.lanes, window, core)


@contextmanager
def _load(traffic: Traffic) -> Iterator[tuple[Connection, Any]]:
    context = multiprocessing.get_context("spawn")
    shared = context.RawValue(Shared)
    control, theirs = context.Pipe()
    process = context.Process(target=send, args=(traffic, theirs, shared), daemon=True)
    process.start()
    theirs.close()
    try:
        yield control, shared
        control.send(None)
    except EOFError as error:
        raise BenchError("the process that sends the load has ended; see what it said") from error
    finally:
        process.join(timeout=10)
        if process.is_alive():
            process.kill()


def _turns(
    options: Options,
    traffic: Traffic,
    endpoint: Endpoint,
    ports: list[int],
    control: Connection,
    shared: Any,
    schedule: Schedule | None,
) -> dict[Core, list[Turn]]:
    turns: dict[Core, list[Turn]] = {name: [] for name in CORES}
    count = options.rounds
    for _ in range(count) if schedule is None else schedule.rounds(count, len(turns), 1.0):
        for name, done in turns.items():
            if schedule is not None:
                schedule.turn(f"a server's core, {CORES[name]}")
            driven: Machine
            if name == "adder":
                driven = Adder(options.lanes)
            elif name == "echo":
                driven = Echo()
            else:
                pipeline = Pipeline(name, options.ablate)
                driven = _server(options, traffic, ports, endpoint, pipeline)
            done.append(_turn(options, driven, endpoint, name, control, shared))
    return turns


def _server(
    options: Options, traffic: Traffic, ports: list[int], endpoint: Endpoint, pipeline: Pipeline
) -> ServerState:
    """Creates a server that is the root of all workers by its first plan."""
    workers = tuple(Address(endpoint.ipv4, port) for port in ports)
    children = tuple(Child(rank, address, 1, 0) for rank, address in enumerate(workers))
    state = ServerState()
    plan = ServerPlan(
        job=JOB,
        epoch=EPOCH,
        world=len(workers),
        lanes=options.lanes,
        rank=0,
        servers=(Address(endpoint.ipv4, endpoint.port),),
        workers=workers,
        windows={0: traffic.window},
        counts=(traffic.chunks,),
        roots=(RootStream(0, NODE, traffic.window, children),),
        optimizer=options.optimizer,
        pipeline=pipeline,
    )
    state.install(plan)
    if options.optimizer is not None:
        shards = state.shards(JOB, options.optimizer, traffic.chunks, options.lanes)
        parameters = np.zeros((traffic.chunks, options.lanes), np.float32)
        shards.start(np.arange(traffic.chunks), parameters)
    return state


def _turn(
    options: Options,
    driven: Machine,
    endpoint: Endpoint,
    name: Core,
    control: Connection,
    shared: Any,
) -> Turn:
    """Drives a machine under load, without counting the start."""
    counters = endpoint.counters
    begun = counters.received
    shared.received = shared.stop = 0
    answered, summed = name != "adder", name not in ("adder", "echo")
    sums = summed and options.optimizer is None and not options.ablate
    control.send((endpoint.port, answered, summed, sums))

    crediting = _CreditedMachine(driven, counters, begun, shared)

    def go_on(seconds: float) -> None:
        drive(crediting, endpoint, lambda: False, deadline=time.monotonic() + seconds)

    go_on(_WARM_SECONDS)
    before, waited, watch = counters.received, _waited(), Stopwatch()
    used = resource.getrusage(resource.RUSAGE_THREAD)
    go_on(options.seconds)
    now = resource.getrusage(resource.RUSAGE_THREAD)
    system, user = now.ru_stime - used.ru_stime, now.ru_utime - used.ru_utime
    wall, busy = watch.read()
    done, others = counters.received - before, (_waited() - waited) / wall
    shared.stop = 1
    while not control.poll():
        go_on(_WARM_SECONDS)
    sent: dict[str, int] = control.recv()
    patience = time.monotonic() + _DRAIN_SECONDS
    while counters.received - begun < sent["sent"] and time.monotonic() < patience:
        go_on(_WARM_SECONDS)
    if sent["sent"] != counters.received - begun:
        lost = sent["sent"] - counters.received + begun
        raise BenchError(f"{lost} of {sent['sent']} packets were lost on loopback ({name})")
    if answered and sent["results"] != sent["sent"]:
        raise BenchError(
            f"{sent['sent']} contributions came to {sent['results']} results ({name}); each worker"
            " should have one of each"
        )
    # Rates are per CPU time, as other processes may have used the core meanwhile.
    kernel = system / max(1e-9, system + user)
    return Turn(done / (busy * wall), busy / max(1e-9, 1 - others), kernel, others)


def _waited() -> float:
    """Returns the seconds this thread has been runnable while another was on its core."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
