# SPDX-License-Identifier: Apache-2.0
"""A whole worker on one core: round after round of one large tensor, against a root that is faster.

Client, driver thread, transport and socket are those that train. The root is a process on another
core (``benchmarks.counterpart``).
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
from typing import Any

import numpy as np

from benchmarks.common import LEAST_BUSY, BenchError, Message
from benchmarks.counterpart import ADDRESS, NONCE
from benchmarks.sampling import Sampler
from hosts.client import Client
from hosts.net.driver import drive
from hosts.net.offload import PLAIN_VARIABLE
from hosts.net.trains import send
from hosts.net.udp import Endpoint
from hosts.session.calls import Calls
from hosts.worker.contributions import Contributions
from hosts.worker.slots import Slots
from hosts.worker.transport import WorkerTransport
from hosts.worker.verification import wrong
from protocol.fixed_point import Floats, dequantise, quantise
from protocol.header import encode_runs
from specs.paths import ROOT

_KEY = "gradient"
_LEAVE_SECONDS = 10.0
# The finest step of the values and the largest of them are 20 binary digits apart, so that they,
# which are their own sums, come back as they were.
_DIGITS = 20

# Functions by stage; what they call counts as theirs unless it is named itself.
STAGES = {
    "submit": (Client.push,),
    "enter windows": (Slots.enter,),
    "quantise": (quantise,),
    "packetise": (Contributions.packets, Endpoint.send, encode_runs),
    "send": (Endpoint.flush, send),
    "receive": (Endpoint.receive,),
    "check": (wrong,),
    "dequantise": (dequantise,),
    "collect": (Calls.take,),
    "state machine": (WorkerTransport.poll, WorkerTransport.on_packets),
    "driver": (drive,),
}


@dataclass(frozen=True)
class Throughput:
    """Of rounds that were measured together.

    wall, computed: seconds that they took, and CPU time of all threads meanwhile. asked, again:
    QUERYs, and contributions sent again. sent, received: datagrams of one system call.
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
        """Share of the core that the worker had."""
        return self.computed / self.wall

    @property
    def valid(self) -> bool:
        """Whether it was this worker that limited the rate."""
        return self.busy > LEAST_BUSY

    def message(self, chunk_bytes: int) -> Message:
        """As JSON takes it; GB/s (10^9) are of gradients."""
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
    """The only worker of a job, over one tensor of so many elements."""

    def __init__(self, client: Client, elements: int) -> None:
        self._client = client
        rng = np.random.default_rng(1)
        most = 1 << _DIGITS
        self._values: Floats = rng.integers(1 - most, most, elements, np.int32).astype(np.float32)
        self._values /= np.float32(most)
        client.connect_service(NONCE, 0)
        client.init_service({_KEY: elements})
        self._round()  # which finds exponents
        self._round()

    def run(self, seconds: float) -> Throughput:
        """Rounds for about so long, at least one. Raises BenchError for sums that are wrong."""
        before, wall, computed = self._counts(), time.perf_counter(), time.process_time()
        end = wall + seconds
        rounds = 0
        while not rounds or time.perf_counter() < end:
            sums = self._round()
            rounds += 1
        wall, computed = time.perf_counter() - wall, time.process_time() - computed
        if not np.array_equal(sums, self._values):
            raise BenchError("the sums of one worker are not what it sent")
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
        """CPU seconds of a chunk by stage, the largest first; core: for what looks on."""
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

    def _counts(self) -> dict[str, Any]:
        statistics = self._client.statistics
        return {
            name: value
            for name, value in {**statistics, **statistics["socket"]}.items()
            if isinstance(value, int)
        }


@contextmanager
def worker(elements: int, lanes: int, window: int, plain: bool, core: int) -> Iterator[Worker]:
    """A worker in this process, and its root in another, on that core.

    Raises BenchError if that does not start, ClientError.
    """
    with (
        tempfile.TemporaryDirectory(prefix="rackhub-") as directory,
        _environment(plain),
        _counterpart(Path(directory, "jobs"), lanes, window, plain, core) as service,
        Client(f"unix:{service}", address=ADDRESS, patience=_LEAVE_SECONDS) as client,
    ):
        yield Worker(client, elements)


def largest_window(lanes: int, most: int) -> int:
    """A power of two up to `most`: of chunks that surely fit in a socket's receive buffer."""
    with Endpoint((ADDRESS, 0), lanes=lanes) as endpoint:
        fits = min(most, endpoint.capacity())
    return 1 << max(0, fits.bit_length() - 1)


@contextmanager
def _environment(plain: bool) -> Iterator[None]:
    """Endpoints that are made here use no segmentation offload, if `plain`."""
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
    command = [sys.executable, "-m", "benchmarks.counterpart", *map(str, arguments)]
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
