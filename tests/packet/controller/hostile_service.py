# SPDX-License-Identifier: Apache-2.0
"""A job service on its socket with two jobs: a training victim, and an attacker's."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np

from controller.jobs.job import Job, State
from controller.planning.tree_planner import TreeKind
from controller.service.servicer import JobServer
from protocol import jobs_pb2
from protocol.header import PORT
from protocol.jobs_pb2_grpc import JobServiceStub
from tests.impaired_links import Impairments
from tests.packet.jobs.protocol_run import LIMIT, Run, network_of
from tests.packet.jobs.switched_job import StartedJob

SERVICE = jobs_pb2.DESCRIPTOR.services_by_name["JobService"]
METHODS = {method.name: method for method in SERVICE.methods}
WORKER, SERVER = jobs_pb2.WORKER, jobs_pb2.SERVER
OWN_HOSTS = {(WORKER, 0): "w3", (WORKER, 1): "w4", (SERVER, 0): "s1"}
OWN_CHUNKS = 3
PAYLOAD = 1024
MOST = (1 << 32) - 1
LONGEST_TEXT = 4096
# Status codes of rejected calls, without UNKNOWN: gRPC returns that for unhandled exceptions.
REFUSALS = {
    "INVALID_ARGUMENT", "ALREADY_EXISTS", "RESOURCE_EXHAUSTED", "PERMISSION_DENIED",
    "FAILED_PRECONDITION", "ABORTED",
}  # fmt: skip

LEVELS = np.array([1, 1, 1], "<u4").tobytes()
# Of an optimizer, what makes a valid one one that cannot run.
BAD_OPTIMIZERS: list[dict[str, Any]] = [
    {"name": ""},
    {"name": "adam"},
    {"name": "SGD"},
    {"name": "x" * 10**6},
    {"name": "\x1b[2J"},
    *({"rate": rate} for rate in (0.0, -1.0, math.nan, math.inf, -math.inf)),
    *({"momentum": momentum} for momentum in (-0.1, 1.0, math.nan, math.inf)),
    {"name": "sgd", "momentum": 0.5},
    *({"weight_decay": decay} for decay in (-1e-9, math.nan, math.inf)),
    {"name": "adam", "momentum": 0.0},
    {"name": "adam", "momentum": 0.0, "beta2": 1.0, "epsilon": 1e-8},
    {"schedule": {"kind": "x" * 10**6}},
    {"schedule": {"kind": "step"}},
    {"spans": [{"first": 1, "rate": 1.0}]},
    {"spans": [{"rate": math.nan}]},
    {"spans": [{"rate": 1.0}, {"first": 1 << 31, "rate": 1.0}]},
    {"consistency": 3},
    {"consistency": 2, "staleness": (1 << 20) + 1},
]
OPTIMIZER = {"name": "momentum", "rate": 0.1, "momentum": 0.9, "weight_decay": 0.0}


def keys(*sizes: int) -> list[Any]:
    return [{"key": key, "name": "all", "elements": size} for key, size in enumerate(sizes)]


def other_processes(_: object) -> list[Any]:
    """Not the one, 0, that is in the place."""
    return [1, -1, (1 << 63) - 1, -(1 << 63)]


class Scene:
    """See the module. Calls are made one at a time, and virtual time passes in between."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.network = network_of("two racks", 5, Impairments())
        stack.callback(self.network.close)
        self.table = self.network.jobs
        self.victim = StartedJob(
            self.network, "victim", ["w0", "w1", "w2"], ["s0"], TreeKind.TWO_LEVEL, 8, window=2
        )
        self.run = Run(self.victim, 2, 77, odd=True)
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-"))
        self.path = f"{directory}/jobs"
        self.server = JobServer(self.table, f"unix:{self.path}")
        stack.callback(self.server.stop)
        self.channel = stack.enter_context(self.connect())
        self.stub = JobServiceStub(self.channel)
        self._number = 0
        self.ended = self.create()
        self.call("Leave", nonce=self.ended.nonce, role=WORKER, reason="to have one that is over")
        self.own = self.running()
        self.before = self.state()
        self.run.submit(skew=0.5, seed=1)

    def connect(self) -> grpc.Channel:
        return grpc.insecure_channel(
            f"unix:{self.path}", options=[("grpc.use_local_subchannel_pool", 1)]
        )

    # -- the victim -------------------------------------------------------------------------------

    def state(self) -> tuple[Any, ...]:
        """Returns the victim's state, which must not change."""
        job = self.victim.job
        members = {place: (m.address, m.left, m.lost) for place, m in job.members.items()}
        return job.state, job.epoch, job.keys, job.slots, members

    def pass_time(self, seconds: float = 0.002) -> None:
        """Runs the victim for a while."""
        self.network.run_for(seconds)
        assert self.state() == self.before

    def finish(self) -> None:
        """Runs the victim to its end and checks its sums."""
        assert self.state() == self.before
        assert self.network.run(lambda: self.run.done, LIMIT), self.run.waiting()
        self.run.check()
        assert self.victim.reported == 0
        assert self.victim.job.epoch == self.before[1]

    # -- the hostile job --------------------------------------------------------------------------

    def create(self, tree: int = jobs_pb2.TWO_LEVEL) -> Job:
        """Creates an admitted job."""
        self._number += 1
        reply = self.call("CreateService", **self.admission(f"own{self._number}", tree))
        return next(job for job in self.table.jobs() if job.number == reply.job)

    def admission(self, namespace: str, tree: int = jobs_pb2.TWO_LEVEL) -> dict[str, Any]:
        hosts = OWN_HOSTS.items()
        return {
            "namespace": namespace,
            "tree": tree,
            "workers": [{"host": h, "rank": rank} for (role, rank), h in hosts if role == WORKER],
            "servers": [{"host": h, "rank": rank} for (role, rank), h in hosts if role == SERVER],
        }

    def address(self, role: int, rank: int) -> dict[str, int]:
        host = OWN_HOSTS[role, rank]
        port = PORT if role == SERVER else 50000 + rank
        return {"ipv4": int(self.network.addressing.address(host)), "port": port}

    def running(
        self,
        tree: int = jobs_pb2.TWO_LEVEL,
        optimizer: dict[str, Any] | None = None,
        *,
        gives_state: bool = False,
    ) -> Job:
        """A job whose members are in; its workers have no plan before its server runs it."""
        job = self.create(tree)
        for role, rank in OWN_HOSTS:
            who = {"nonce": job.nonce, "role": role, "rank": rank}
            self.call("ConnectService", address=self.address(role, rank), **who)
        for rank in (0, 1):
            self.call(
                "InitService",
                nonce=job.nonce,
                rank=rank,
                keys=keys(256 * OWN_CHUNKS),
                optimizer=optimizer,
                gives_state=gives_state,
            )
        self.beat(job)
        assert job.state is State.RUNNING
        return job

    def beat(self, job: Job) -> None:
        self.call("Heartbeat", nonce=job.nonce, role=SERVER, epoch=job.epoch)

    def changing(self) -> Job:
        """Creates a job in which worker 1 must hand a result of chunk 2 to worker 0."""
        job = self.running()
        who = [{"nonce": job.nonce, "role": role, "rank": rank} for role, rank in OWN_HOSTS]
        self.call("Resync", epoch=1, broken={"chunk": 0, "reason": "checksum"}, **who[0])
        for one, levels in zip(who, ([1, 1, 0], [1, 1, 1], []), strict=True):
            report = {"levels": np.array(levels, "<u4").tobytes()}
            self.call("Resync", epoch=2, report=report, **one)
        return job

    # -- calls ------------------------------------------------------------------------------------

    def call(self, name: str, **fields: Any) -> Any:
        """Makes a call that must succeed; returns its reply (of Watch the first instruction)."""
        code, answer = self.attempt(name, METHODS[name].input_type._concrete_class(**fields))
        assert code == "OK", answer
        return answer

    def attempt(self, name: str, request: Any) -> tuple[str, Any]:
        """Makes a call; returns (status, reply or text), of Watch the first instruction."""
        method = getattr(self.stub, name)
        try:
            if not METHODS[name].server_streaming:
                return "OK", method(request)
            watch = method(request)
            first = next(watch)
            watch.cancel()
            return "OK", first
        except grpc.RpcError as error:
            return error.code().name, error.details()


@contextlib.contextmanager
def scene() -> Iterator[Scene]:
    with contextlib.ExitStack() as stack:
        yield Scene(stack)


def results(level: int, chunk: int = 2, header: int = 32, payload: int = PAYLOAD) -> list[Any]:
    one = {"chunk": chunk, "level": level, "header": bytes(header), "payload": bytes(payload)}
    return [one]


def right(s: Scene, name: str) -> dict[str, Any]:
    """Returns fields of a valid call by worker 0 of the attacker's job."""
    who = {"nonce": s.own.nonce, "role": WORKER, "rank": 0}
    return {
        "CreateService": s.admission("another"),
        "ConnectService": who | {"address": s.address(WORKER, 0)},
        "InitService": {"nonce": s.own.nonce, "rank": 0, "keys": keys(256 * OWN_CHUNKS)},
        "Watch": who,
        "Resync": who | {"rank": 1, "epoch": s.own.epoch},
        "Heartbeat": who | {"epoch": 1},
        "Leave": who | {"levels": LEVELS, "results": results(1)},
        "Gone": who,
        "Enrol": {"nonce": s.own.nonce, "host": "w0"},
        "Scale": {"nonce": s.own.nonce, "added": ["s1"]},
        "Status": {},
    }[name]
