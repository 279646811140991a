# SPDX-License-Identifier: Apache-2.0
"""Benchmark of a whole worker on one core: repeated sums of one large tensor.

Client, driver thread, transport and socket are those of training. The root, which is faster, is a
process on another core (``benchmarks.worker_peer``).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

import numpy as np
from typing_extensions import TypedDict

from benchmarks.common import LEAST_BUSY, BenchError
from benchmarks.sampling import Sampler
from benchmarks.worker_peer import ADDRESS, NONCE
from hosts.client import Client
from hosts.net.driver import drive
from hosts.net.offload import PLAIN_VARIABLE
from hosts.net.trains import send
from hosts.net.udp import Endpoint
from hosts.session.calls import Calls
from hosts.worker.transport import WorkerTransport
from protocol.header import encode_runs
from protocol.payloads import Floats
from specs.paths import ROOT

_KEY = "gradient"
_LEAVE_SECONDS = 10.0
# The values' step and maximum are 20 binary digits apart, so fixed point returns them exactly: the
# sum of one worker is its own contribution.
_DIGITS = 20

# Functions by stage; callees count for their caller unless they are listed themselves.
STAGES = {
    "submit": (Client.push,),
    "contribute": (WorkerTransport.poll,),
    "send": (Endpoint.send, Endpoint.flush, send, encode_runs),
    "receive": (Endpoint.receive,),
    "take results": (WorkerTransport.on_packets, WorkerTransport.take_completed),
    "turn at the socket": (WorkerTransport.turns,),
    "collect": (Calls.take,),
    "driver": (drive,),
}


class WorkerRates(TypedDict):
    """What a whole worker does on one core."""

    chunks_per_second: float
    """Chunks summed per second of wall time."""
    chunks_per_cpu_second: float
    """Chunks summed per second of CPU time."""
    gb_per_second: float
    """GB (10^9 bytes) of gradients summed per second of wall time."""
    busy: float
    """The worker's share of its core, 0 to 1."""
    valid: bool
    """True if the worker was the bottleneck."""
    rounds: int
    """Times that the tensor was summed."""
    datagrams_per_send: float
    """Datagrams per system call that sends."""
    datagrams_per_receive: float
    """Datagrams per system call that receives."""
    questions: int
    """QUERYs."""
    sent_again: int
    """Retransmitted contributions."""


@dataclass(frozen=True)
class Throughput:
    """The measurements of some rounds.

    wall, computed: Wall and CPU time (of all threads), in seconds.
    asked, again: QUERYs, and retransmitted contributions.
    sent, received: Datagrams per system call.
    """

    chunks: int
    rounds: int
    wall: float
    computed: float
    asked: int
    again: int
    sent: float
    received: float

    @property
    def busy(self) -> float:
        """The worker's share of its core."""
        return self.computed / self.wall

    @property
    def valid(self) -> bool:
        """True if the worker was the bottleneck."""
        return self.busy > LEAST_BUSY

    def message(self, chunk_bytes: int) -> WorkerRates:
        """Returns the JSON object. chunk_bytes: of a chunk's gradients."""
        rate = self.chunks / self.wall
        return {
            "chunks_per_second": rate,
            "chunks_per_cpu_second": self.chunks / self.computed,
            "gb_per_second": rate * chunk_bytes / 1e9,
            "busy": self.busy,
            "valid": self.valid,
            "rounds": self.rounds,
            "datagrams_per_send": self.sent,
            "datagrams_per_receive": self.received,
            "questions": self.asked,
            "sent_again": self.again,
        }


class Worker:
    """The only worker of a job, with one tensor of `elements` elements."""

    def __init__(self, client: Client, elements: int) -> None:
        self._client = client
        rng = np.random.default_rng(1)
        most = 1 << _DIGITS
        self._values: Floats = rng.integers(1 - most, most, elements, np.int32).astype(np.float32)
        self._values /= np.float32(most)
        client.connect_service(NONCE, 0)
        client.init_service({_KEY: elements})
        self._round()  # negotiates exponents
        self._round()

    def run(self, seconds: float) -> Throughput:
        """Runs rounds for about `seconds`, at least one. Raises BenchError for wrong sums."""
        before, wall, computed = self._counts(), time.perf_counter(), time.process_time()
        end = wall + seconds
        rounds = 0
        while not rounds or time.perf_counter() < end:
            sums = self._round()
            rounds += 1
        wall, computed = time.perf_counter() - wall, time.process_time() - computed
        if not np.array_equal(sums, self._values):
            raise BenchError("the sums of one worker differ from its contribution")
        now = self._counts()
        done = {name: now[name] - before[name] for name in now}
        return Throughput(
            done["completed"],
            rounds,
            wall,
            computed,
            done["queries"],
            done["retransmitted"],
            done["sent"] / done["send_calls"],
            done["received"] / done["receive_calls"],
        )

    def profile(self, seconds: float, core: int) -> dict[str, float]:
        """Returns CPU seconds per chunk by stage, the largest first. core: for the sampler."""
        codes = {
            function.__code__: stage
            for stage, functions in STAGES.items()
            for function in functions
            if isinstance(function, FunctionType)
        }
        sampler = Sampler(codes, threading.enumerate(), core)
        sampler.start()
        chunks = self.run(seconds).chunks
        return {stage: taken / chunks for stage, taken in sampler.stop().items()}

    def _round(self) -> Floats:
        return self._client.push_pull({_KEY: self._values})[_KEY]

    def _counts(self) -> dict[str, int]:
        statistics = self._client.statistics
        return {
            name: value
            for name, value in {**statistics, **statistics["socket"]}.items()
            if isinstance(value, int)
        }


@contextmanager
def worker(elements: int, lanes: int, window: int, plain: bool, core: int) -> Iterator[Worker]:
    """Runs a worker in this process and its root in another, on `core`.

    Raises:
        BenchError: The root did not start.
        ClientError
    """
    with (
        tempfile.TemporaryDirectory(prefix="rackhub-") as directory,
        _environment(plain),
        _counterpart(Path(directory, "jobs"), lanes, window, plain, core) as service,
        Client(f"unix:{service}", address=ADDRESS, patience=_LEAVE_SECONDS) as client,
    ):
        yield Worker(client, elements)


def largest_window(lanes: int, most: int) -> int:
    """Returns the largest window (a power of two, up to `most`) that fits a receive buffer."""
    with Endpoint((ADDRESS, 0), lanes=lanes) as endpoint:
        fits = min(most, endpoint.capacity())
    return 1 << max(0, fits.bit_length() - 1)


@contextmanager
def _environment(plain: bool) -> Iterator[None]:
    """Disables segmentation offload for endpoints created within the context, if `plain`."""
    before = os.environ.get(PLAIN_VARIABLE)
    if plain:
        os.environ[PLAIN_VARIABLE] = "1"
    try:
        yield
    finally:
        if plain and before is None:
            del os.environ[PLAIN_VARIABLE]


@contextmanager
def _counterpart(service: Path, lanes: int, window: int, plain: bool, core: int) -> Iterator[Path]:
    arguments = ["--service", service, "--lanes", lanes, "--window", window, "--core", core]
    command = [sys.executable, "-m", "benchmarks.worker_peer", *map(str, arguments)]
    if plain:
        command.append("--plain")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "ready\n":
                raise BenchError(
                    "the root that answers the worker did not start: exit status"
                    f" {process.wait()}, and what it wrote to standard error"
                )
            yield service
        finally:
            process.stdin.close()
            process.wait()
