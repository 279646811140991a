# SPDX-License-Identifier: Apache-2.0
"""The worker process of a job: ``python -m testbed.worker --help``.

It reads the job's nonce from its standard input, trains, and reports on its standard output, one
JSON object a line (``observability.messages.process_reports``). The input line ``leave`` has it
leave the job at the end of its present round. Each other one is a query for its current activity;
the answer is ``outline``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from hosts.client import Client, Stall, Sums
from hosts.data.reports import ClientStatistics
from hosts.errors import ClientError, LeftBehindError, PlanWithdrawnError, ServiceUnavailableError
from hosts.net.environment import HERE, HostEnvironment
from hosts.worker.explanation import Outline
from observability.cpu_use import CpuWatch
from observability.messages.process_reports import Report, Scheduling, encode
from protocol.runtime import REAL, Runtime
from specs.jobfile import JobFile, JobFileError, load
from testbed.errors import CONSEQUENCE, LEFT_BEHIND
from testbed.worker_options import WorkerOptions
from workloads.attendance import ParticipationLog, entry_of
from workloads.layer_times import times_of
from workloads.models import Parameters
from workloads.observer import NULL_OBSERVER, Observer
from workloads.pacing import Pacing
from workloads.trainer import Progress, Replica, check_one_thread, digest, train

LEAVE = "leave"  # the line that asks a worker to leave
_REPORT_SECONDS = 0.2
_printing = REAL.lock()  # lines of two threads must not mix


Emit = Callable[[Report], None]


class _Reporter:
    """Emits ``progress`` reports at intervals, after evaluations, and after the last iteration
    here.

    statistics, plan: return the client's counters and epoch.
    per_pass: iterations per pass over the data.
    """

    def __init__(
        self,
        statistics: Callable[[], ClientStatistics],
        plan: Callable[[], int],
        iterations: int,
        per_pass: float,
        participation: ParticipationLog,
        emit: Emit,
        clock: Callable[[], float],
    ) -> None:
        self._emit, self._clock = emit, clock
        self._statistics = statistics
        self._plan = plan
        self._iterations = iterations
        self._per_pass = per_pass
        self._participation = participation
        self._next = 0.0
        self._losses: list[float | None] = []  # of all iterations since the last report
        self._spans: list[tuple[float, float]] = []  # their begins and ends

    def __call__(self, progress: Progress, *, leaves: bool) -> None:
        now = self._clock()
        self._losses.append(progress.loss)
        self._spans.append((progress.began, progress.ended))
        last = leaves or progress.iteration == self._iterations
        if now < self._next and not progress.is_measured and not last:
            return
        self._next = now + _REPORT_SECONDS
        self._emit(
            {
                "report": "progress",
                "iteration": progress.iteration,
                "passes": progress.iteration / self._per_pass,
                "losses": self._losses,
                "spans": self._spans,
                "plan": self._plan(),
                "attendance": self._participation.tell(),
                "accuracy": progress.quality and progress.quality.accuracy,
                "statistics": self._statistics(),
            }
        )
        self._losses, self._spans = [], []


class Orders:
    """Orders to a worker that runs. leave: it is to leave at the end of its present round."""

    leave = False


class _Activity:
    """Tracks what this worker does and answers queries for it, one for each line of input but those
    that are orders.

    participation: which workers are in the sums.
    first: the lowest rank that is in all sums of the last iteration.
    """

    def __init__(
        self,
        queries: Iterable[bytes],
        orders: Orders,
        client: Client,
        emit: Emit,
        runtime: Runtime,
    ) -> None:
        self._emit, self._clock, self._orders = emit, runtime.now, orders
        self.participation = ParticipationLog()
        self.first = 0
        self._queries = queries
        self._client = client
        self._calls = 0  # of `exchange`
        self._does = "starts", self._clock()  # activity, and its begin

    def computes(self) -> None:
        """Records that it begins to compute."""
        self._does = "computes", self._clock()

    def resumes(self, iterations: int) -> None:
        """Sets the number of iterations done before this process joined or continued."""
        self._calls = iterations
        self.participation = ParticipationLog(iterations)

    def exchange(self, gradients: Parameters, call: Callable[[Parameters, int], Sums]) -> Sums:
        """Calls ``call`` with the next iteration's gradients and number; returns its sums.

        Records that the worker waits meanwhile, and which workers are in the sums.
        """
        self._calls += 1
        self._does = "waits", self._clock()
        try:
            sums = call(gradients, self._calls)
        finally:
            self.computes()
        entry = entry_of([sums.workers[name] for name in gradients], sums.members)
        self.participation.note(entry)
        # All workers in the sums compute the same rank. Ranks ascend, so it is mostly the first.
        some, *others = [ranks for ranks, _ in entry]
        self.first = next(rank for rank in some if all(rank in ranks for ranks in others))
        return sums

    def run(self) -> None:
        """Answers queries and takes orders until the end of the input."""
        for line in self._queries:
            if line.strip() == LEAVE.encode():
                self._orders.leave = True
                continue
            try:
                self._client.inquire(self._tell)
            except (ClientError, RuntimeError):  # it has left, or has not joined yet
                self._tell(None)

    def _tell(self, outline: Outline | None) -> None:
        doing, since = self._does
        self._emit(
            {
                "report": "outline",
                "doing": doing,
                "seconds": self._clock() - since,
                "iteration": self._calls,
                "outline": outline,
            }
        )


def emit(report: Report) -> None:
    """Writes a report to standard output; ignores a closed pipe."""
    with _printing, contextlib.suppress(BrokenPipeError):
        print(encode(report), flush=True)


def report_stall(stall: Stall, emit: Emit = emit) -> None:
    """Reports that this worker waits, how long, and what it knows of its oldest chunk."""
    emit(
        {
            "report": "waiting",
            "seconds": stall.seconds,
            "oldest": stall.oldest,
            "text": str(stall),
        }
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the worker process; returns its exit status."""
    options = WorkerOptions(**vars(parser().parse_args(arguments)))
    logging.basicConfig(
        level="INFO", stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # SystemExit lets the worker leave its job.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Unbuffered: a thread that waits inside sys.stdin would hold its lock at exit.
    queries = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115
    nonce = queries.readline().decode().strip()
    check_one_thread()
    return work(options, nonce, queries)


def work(
    options: WorkerOptions,
    nonce: str,
    queries: Iterable[bytes],
    emit: Emit = emit,
    environment: HostEnvironment = HERE,
    observer: Observer = NULL_OBSERVER,
    file: JobFile | None = None,
    orders: Orders | None = None,
) -> int:
    """Trains one worker of a job; returns its exit status.

    queries: lines of input.
    environment: clock, threads and network of the host.
    observer: notified of what the worker does.
    file: the job file, if the caller has read it.
    orders: of a caller that gives them here, not as lines.
    """
    orders = orders or Orders()
    runtime = environment.runtime
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
            environment=environment,
        )
        activity = _Activity(queries, orders, client, emit, runtime)
        if queries:  # in virtual time none come
            runtime.thread(activity.run, name="activity", daemon=True).start()
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
                activity.resumes(done)
            activity.computes()
            pacing = Pacing(
                environment.compute,
                replica.model.by_layer,
                times_of(file),
                file.compute_seconds,
                job.iterations,
                observer,
            )
            observer.begun(lambda: client.chunks_done)
            emit(
                {
                    "report": "started",
                    "plan": client.epoch,
                    "joined": client.joined is not None,
                    "done": done,
                }
            )
            cpu_watch = CpuWatch() if runtime is REAL else None
            reporter = _Reporter(
                lambda: client.statistics,
                lambda: client.epoch,
                job.iterations,
                replica.per_pass,
                activity.participation,
                emit,
                runtime.now,
            )

            def push(gradients: Parameters) -> Future[Sums]:
                return client.push(gradients, average=not at_servers, copy=False)

            def exchange(gradients: Parameters, meanwhile: Callable[[], object]) -> Parameters:
                def really(given: Parameters, _: int) -> Sums:
                    sums = push(given)
                    meanwhile()
                    return sums.result()

                if runtime is REAL:  # pacing is for virtual time only
                    return activity.exchange(gradients, really)
                meanwhile()  # takes no virtual time
                return activity.exchange(
                    gradients, lambda given, n: pacing.exchange(given, n, push)
                )

            leaves, left_after = False, None

            def judges() -> bool:
                """Returns true if this worker does what one has to do for all."""
                return bool(options.rank == activity.first)

            def saves(iteration: int) -> bool:
                if job.checkpoint is None or not judges():
                    return False
                return iteration == job.iterations or iteration % job.checkpoint.every == 0

            def pauses(iteration: int) -> bool:
                nonlocal leaves
                leaves = orders.leave and iteration < job.iterations
                return leaves or saves(iteration)

            def report(progress: Progress) -> bool:
                nonlocal left_after
                observer.iterated(progress.iteration)
                reporter(progress, leaves=leaves)
                if saves(progress.iteration):
                    file = f"{options.checkpoints}-{progress.iteration}.checkpoint"
                    client.checkpoint(file)
                    emit(
                        {
                            "report": "checkpoint",
                            "iteration": progress.iteration,
                            "file": file,
                        }
                    )
                left_after = progress.iteration if leaves else None
                return not leaves

            seconds = train(
                replica, job.iterations, exchange, report, pauses, judges, done, runtime.now
            )
            if left_after is not None:
                client.leave(finished=False)
            scheduling = _scheduling(cpu_watch)
            statistics, plan, blocked = client.statistics, client.epoch, client.blocked_by_change
    except (ClientError, OSError) as error:  # TimeoutError is an OSError
        emit({"report": "failed", "error": str(error)})
        logging.getLogger("worker").error("%s", error)
        if isinstance(error, LeftBehindError):
            return LEFT_BEHIND
        lost = isinstance(error, (PlanWithdrawnError, ServiceUnavailableError))
        return CONSEQUENCE if lost else 1
    if left_after is not None:
        emit(
            {
                "report": "left",
                "iteration": left_after,
                "attendance": activity.participation.tell(all_of_it=True),
            }
        )
        return 0
    if options.weights and replica.model.learns:
        save(replica.parameters, options.weights)
    quality = replica.model.evaluate(replica.workload.test)
    emit(
        {
            "report": "done",
            "digest": digest(replica.parameters) if job.payload == "summed" else "",
            "accuracy": quality and quality.accuracy,
            "test_loss": quality and quality.loss,
            "data_sha256": replica.workload.sha256,
            "seconds": seconds,
            "statistics": statistics,
            "plan": plan,
            "blocked": blocked,
            "attendance": activity.participation.tell(all_of_it=True),
            "scheduling": scheduling,
        }
    )
    return 0


def _scheduling(watch: CpuWatch | None) -> Scheduling | None:
    """Returns this process's CPU use and dropped datagrams; None in virtual time."""
    if watch is None:
        return None
    return {"share": watch.share(), "dropped": watch.dropped()}


def save(parameters: Parameters, path: Path) -> None:
    """Writes the weights atomically; every worker that finishes does, as any may be lost."""
    draft = path.with_name(f".{path.stem}-{os.getpid()}.npz")
    np.savez(draft, **parameters)  # type: ignore[arg-type]
    draft.replace(path)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the process's options."""
    made = argparse.ArgumentParser(
        prog="python -m testbed.worker",
        description="One worker of a job. It reads the job's nonce from standard input.",
    )
    made.add_argument("--job", required=True, type=Path, metavar="FILE", help="job file")
    made.add_argument("--rank", required=True, type=int)
    made.add_argument("--world", required=True, type=int, help="number of workers")
    made.add_argument("--service", required=True, metavar="unix:PATH", help="the job service")
    made.add_argument("--address", required=True, metavar="IPV4", help="this host's address")
    made.add_argument("--queue-bytes", type=int, help="queue of this host's interface")
    made.add_argument("--link-rate", type=int, default=0, help="bit/s of this host's link")
    made.add_argument("--weights", type=Path, metavar="NPZ", help="file for the weights")
    made.add_argument("--restore", type=Path, metavar="FILE", help="checkpoint to continue from")
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
