# SPDX-License-Identifier: Apache-2.0
"""The worker process: ``python -m testbed.worker --help``.

Reads the job's nonce from its standard input, trains, and reports on its standard output, a JSON
object a line (``started``, ``progress``, ``waiting``, ``failed``, ``done``). Each further line of
its input asks what it does at the moment: the answer is ``outline``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hosts.client import Client, Stall, Sums
from hosts.errors import ClientError, PlanWithdrawnError, ServiceUnavailableError
from hosts.net.environment import HERE, Outside
from hosts.worker.explanation import Outline
from observability.scheduling import CpuWatch
from protocol.world import REAL, World
from specs.jobfile import JobFile, JobFileError, load
from testbed.errors import CONSEQUENCE
from workloads.attendance import Diary, entry_of
from workloads.models import Parameters
from workloads.observer import NULL_OBSERVER, Observer
from workloads.pacing import Pacing
from workloads.trainer import Progress, Replica, check_one_thread, digest, train

_REPORT_SECONDS = 0.2
_printing = REAL.lock()  # lines of two threads must not mix


class Emit(Protocol):
    """Reports something, and what there is to tell of it."""

    def __call__(self, what: str, /, **fields: Any) -> None: ...


class _Reporter:
    """Writes progress, not more often than somebody could follow, and at the end: after so many
    iterations."""

    def __init__(
        self,
        statistics: Callable[[], dict[str, Any]],
        plan: Callable[[], int],
        iterations: int,
        per_pass: float,
        diary: Diary,
        emit: Emit,
        clock: Callable[[], float],
    ) -> None:
        self._emit, self._clock = emit, clock
        self._statistics = statistics
        self._plan = plan
        self._iterations = iterations
        self._per_pass = per_pass
        self._diary = diary
        self._next = 0.0
        self._losses: list[float | None] = []  # of all iterations since the last report
        self._spans: list[tuple[float, float]] = []  # when they began and ended

    def __call__(self, progress: Progress) -> None:
        now = self._clock()
        self._losses.append(progress.loss)
        self._spans.append((progress.began, progress.ended))
        last = progress.iteration == self._iterations
        if now < self._next and progress.quality is None and not last:
            return
        self._next = now + _REPORT_SECONDS
        self._emit(
            "progress",
            iteration=progress.iteration,
            passes=progress.iteration / self._per_pass,
            losses=self._losses,
            spans=self._spans,
            plan=self._plan(),
            attendance=self._diary.tell(),
            accuracy=progress.quality and progress.quality.accuracy,
            test_loss=progress.quality and progress.quality.loss,
            statistics=self._statistics(),
        )
        self._losses, self._spans = [], []


class _Desk:
    """Answers questions about what this worker does, one for each line of its input."""

    def __init__(
        self, questions: Iterable[bytes], client: Client, emit: Emit, world: World
    ) -> None:
        self._emit, self._clock = emit, world.now
        self.diary = Diary()
        self.first = 0  # rank of the first worker that is in all sums of the last iteration
        self._questions = questions
        self._client = client
        self._calls = 0  # of `exchange`
        self._does = "starts", self._clock()  # what, and since when

    def computes(self) -> None:
        """From now on it computes."""
        self._does = "computes", self._clock()

    def resumes(self, iterations: int) -> None:
        """So many iterations went by without this process."""
        self._calls = iterations
        self.diary = Diary(iterations)

    def exchange(self, gradients: Parameters, call: Callable[[Parameters, int], Sums]) -> Sums:
        """What comes of a call with the gradients of the next iteration, and its number; notes that
        this is what it does meanwhile, and who took part."""
        self._calls += 1
        self._does = "waits", self._clock()
        try:
            came = call(gradients, self._calls)
        finally:
            self.computes()
        workers = np.concatenate([came.workers[name] for name in gradients])
        entry = entry_of(workers, came.members)
        self.diary.note(entry)
        # Which all who are in the sums tell alike.
        self.first = min(set.intersection(*(set(ranks) for ranks, _ in entry)))
        return came

    def run(self) -> None:
        """Until the end of the input."""
        for _ in self._questions:
            try:
                self._client.inquire(self._tell)
            except (ClientError, RuntimeError):  # it has left, or is not in yet
                self._tell(None)

    def _tell(self, outline: Outline | None) -> None:
        doing, since = self._does
        self._emit(
            "outline",
            doing=doing,
            seconds=self._clock() - since,
            iteration=self._calls,
            outline=dataclasses.asdict(outline) if outline is not None else None,
        )


def emit(what: str, /, **fields: Any) -> None:
    """Reports on standard output. A reader that is gone is no reason to fail."""
    with _printing, contextlib.suppress(BrokenPipeError):
        print(json.dumps({"report": what, **fields}), flush=True)


def report_stall(stall: Stall, emit: Emit = emit) -> None:
    """Says that this worker waits, for how long, and what it knows of the oldest chunk."""
    emit(
        "waiting",
        seconds=stall.seconds,
        oldest=dataclasses.asdict(stall.oldest) if stall.oldest else None,
        text=str(stall),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The worker process; returns its exit status."""
    options = parser().parse_args(arguments)
    logging.basicConfig(
        level="INFO", stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # So that a worker that is told to stop leaves its job.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Unbuffered: a thread that waits inside sys.stdin would hold its lock at exit.
    questions = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115
    nonce = questions.readline().decode().strip()
    check_one_thread()
    return work(options, nonce, questions)


def work(
    options: argparse.Namespace,
    nonce: str,
    questions: Iterable[bytes],
    emit: Emit = emit,
    outside: Outside = HERE,
    observer: Observer = NULL_OBSERVER,
    file: JobFile | None = None,
) -> int:
    """What the process does with its options; returns its exit status.

    questions: a line each asks what it does. outside: where it runs. observer: is
    told what it does. file: the job's, if whoever calls has read it.
    """
    world = outside.world
    file = load(options.job) if file is None else file
    job = file.spec
    replica = Replica(job, options.rank, options.world)
    try:
        client = Client(
            options.service,
            address=options.address,
            queue_bytes=options.queue_bytes,
            link_rate=options.link_rate,
            patience=job.patience,
            on_stall=functools.partial(report_stall, emit=emit),
            outside=outside,
        )
        desk = _Desk(questions, client, emit, world)
        world.thread(desk.run, name="desk", daemon=True).start()
        with client:
            client.connect_service(nonce, rank=options.rank)
            at_servers = job.optimizer.at == "servers"
            client.init_service(
                replica.parameters,
                optimizer=job.plan if at_servers else None,
                state=replica.state,
                restore=options.restore,
                timeout=job.patience,
            )
            before = client.joined or client.restored
            done = 0 if before is None else before.calls
            if before is not None:
                replica.resume(done, before.arrays)
                desk.resumes(done)
            desk.computes()
            times = file.layer_times.times if file.layer_times is not None else None
            pacing = Pacing(
                *(world, replica.model.by_layer, times, file.compute_seconds, job.iterations),
                observer,
            )
            observer.begun(lambda: client.chunks_done)
            emit("started", plan=client.epoch, joined=client.joined is not None, done=done)
            cpu_watch = CpuWatch() if world is REAL else None
            reporter = _Reporter(
                lambda: dict(client.statistics),
                lambda: client.epoch,
                job.iterations,
                replica.per_pass,
                desk.diary,
                emit,
                world.now,
            )

            def push(gradients: Parameters) -> Future[Sums]:
                return client.push(gradients, average=not at_servers)

            def exchange(gradients: Parameters) -> Parameters:
                if world is REAL:  # there computing takes the time that it takes
                    return desk.exchange(gradients, lambda given, _: push(given).result())
                return desk.exchange(gradients, lambda given, n: pacing.exchange(given, n, push))

            def report(progress: Progress) -> None:
                reporter(progress)
                end = progress.iteration == job.iterations
                due = job.checkpoint and (end or progress.iteration % job.checkpoint.every == 0)
                if due and options.rank == desk.first:
                    file = f"{options.checkpoints}-{progress.iteration}.checkpoint"
                    client.checkpoint(file)
                    emit("checkpoint", iteration=progress.iteration, file=file)

            seconds = train(replica, job.iterations, exchange, report, done, world.now)
            scheduling = _scheduling(cpu_watch)
            statistics, plan = dict(client.statistics), client.epoch
    except (ClientError, OSError) as error:  # TimeoutError is an OSError
        emit("failed", error=str(error))
        logging.getLogger("worker").error("%s", error)
        lost = isinstance(error, (PlanWithdrawnError, ServiceUnavailableError))
        return CONSEQUENCE if lost else 1
    if options.weights and replica.model.learns:
        save(replica.parameters, options.weights)
    quality = replica.model.evaluate(replica.workload.test)
    emit(
        "done",
        digest=digest(replica.parameters) if job.payload == "summed" else "",
        accuracy=quality and quality.accuracy,
        test_loss=quality and quality.loss,
        data_sha256=replica.workload.sha256,
        seconds=seconds,
        statistics=statistics,
        plan=plan,
        attendance=desk.diary.tell(all_of_it=True),
        scheduling=scheduling,
    )
    return 0


def _scheduling(watch: CpuWatch | None) -> dict[str, Any] | None:
    """What this process tells of CPUs; None in virtual time."""
    if watch is None:
        return None
    known = watch.share()
    share = None if known is None else dataclasses.asdict(known)
    return {"share": share, "dropped": watch.dropped()}


def save(parameters: Parameters, path: Path) -> None:
    """Writes the weights, whole or not at all. All who finish do: whichever of them are left."""
    draft = path.with_name(f".{path.stem}-{os.getpid()}.npz")
    np.savez(draft, **parameters)  # type: ignore[arg-type]
    draft.replace(path)


def parser() -> argparse.ArgumentParser:
    """Its options."""
    made = argparse.ArgumentParser(
        prog="python -m testbed.worker",
        description="One worker of a job. Reads the job's nonce from standard input.",
    )
    made.add_argument("--job", required=True, type=Path, metavar="FILE", help="job file")
    made.add_argument("--rank", required=True, type=int)
    made.add_argument("--world", required=True, type=int, help="number of workers")
    made.add_argument("--service", required=True, metavar="unix:PATH", help="the job service")
    made.add_argument("--address", required=True, metavar="IPV4", help="this host's address")
    made.add_argument("--queue-bytes", type=int, help="queue of this host's interface")
    made.add_argument("--link-rate", type=int, default=0, help="bit/s of this host's link")
    made.add_argument("--weights", type=Path, metavar="NPZ", help="where to keep the weights")
    made.add_argument("--restore", type=Path, metavar="FILE", help="checkpoint to go on from")
    made.add_argument(
        "--checkpoints", metavar="STEM", help="checkpoints go to STEM-ITERATION.checkpoint"
    )
    return made


if __name__ == "__main__":
    try:
        sys.exit(main())
    except JobFileError as failure:
        print(failure, file=sys.stderr)
        sys.exit(1)
