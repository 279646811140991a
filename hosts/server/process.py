# SPDX-License-Identifier: Apache-2.0
"""The parameter server process: `python -m hosts.server --help`.

One process serves every job of its host, or of one core at one of its interfaces, on a UDP port;
servers that run an optimizer call each other on the TCP port of that number. Once the socket is
bound it prints `ready ADDRESS:PORT`. Its parent then names the jobs on standard input, so that a
job's nonce is in no argument list or environment:

    join NONCE RANK

Each line is answered by one line on standard output, in order: `joined JOB`, or `refused` and the
reason. The job service does the rest: a job is served from its first plan until it ends. At the end
of its input the server goes on with its jobs. SIGTERM or SIGINT make it leave them and exit with
status 0; exit status 1 and a line on standard error say why it could not serve.
"""

from __future__ import annotations

import argparse
import logging
import math
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from hosts.data.reports import Failure
from hosts.data.snapshot import Chunks, Snapshot
from hosts.epoch_change import UnrecoverableChunkError
from hosts.errors import ClientError, JobRefusedError, LeftBehindError
from hosts.net.driver import Attachment, drive
from hosts.net.environment import HERE, HostEnvironment
from hosts.net.offload import PLAIN
from hosts.net.udp import Endpoint
from hosts.server.chunk_fetches import MoveTask
from hosts.server.epoch_change import FetchTask, ServerEpochs
from hosts.server.replicas import Peers, ShardServer
from hosts.server.state import NotHereError, ServerState, Update
from hosts.server.times import Watch
from hosts.session.membership import Membership
from protocol import jobs_pb2
from protocol.header import PORT, Batch
from protocol.plan import Address
from protocol.runtime import Thread
from switch.compiler import CompilerError

_log = logging.getLogger("server")


class ServerProcess:
    """A server's state machine, its socket, and its memberships of jobs.

    link_rate: bit/s of the host's link; 0: as in plans. The thread of `run` alone touches the state
    machine; other threads hand it work through `_later`.
    """

    def __init__(
        self,
        endpoint: Attachment,
        service: str,
        link_rate: int = 0,
        environment: HostEnvironment = HERE,
    ) -> None:
        self._environment, self._runtime = environment, environment.runtime
        watch = Watch(self._runtime.now, lambda: endpoint.queued)
        self.state = ServerState(payload=environment.payload, watch=watch)
        self._endpoint = endpoint
        self._service = service
        self._link_rate = link_rate
        self._memberships: dict[str, Membership] = {}  # by nonce
        self._followers: dict[str, ServerEpochs] = {}
        self._failed: list[tuple[int, Failure]] = []
        self._departures: list[Thread] = []
        self._work: deque[Callable[[], None]] = deque()
        self._stopped = False
        self._joining = self._runtime.lock()
        address = Address(endpoint.ipv4, endpoint.port)
        state = self.state
        self._shards = ShardServer(
            *(address, self._later, state.replicate, self._give, state.move, state.save),
            *(state.load, environment),
        )
        self._peers = Peers(self._later, environment)

    def run(self) -> None:
        """Serves until `stop`, then leaves all jobs. Raises OSError if it cannot send."""
        reason = "the server was asked to stop"
        try:
            while not self._stopped:
                drive(
                    self.state,
                    self._endpoint,
                    self._interrupted,
                    clock=self._runtime.now,
                    on_train=self.state.on_train,
                )
                for update in self.state.take_updates():
                    self._replicate(update)
                for job, report in self.state.take_reports():
                    for membership in self._memberships.values():
                        if membership.job == job:
                            membership.answer([report])
                for task in self.state.take_moves(self._runtime.now()):
                    self._move(task)
                while self._work:
                    self._work.popleft()()
                while self._failed:
                    self._give_up(*self._failed.pop())
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._peers.close()
            self._shards.stop()
            for nonce in list(self._memberships):
                # The job service may already have been stopped, too.
                self._depart(nonce, reason, outage=1.0)
            for departure in self._departures:
                departure.join()

    def expected(self) -> tuple[float, float]:
        """Returns what HostEnvironment.expect asks for: a server calls others with updates of an
        optimizer, and the job service with what it measured."""
        return (0, 0) if self.state.optimizes else (self.state.quiet, math.inf)

    def visible(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """Returns what HostEnvironment.expect asks for."""
        return self.state.visible(batch)

    def stop(self) -> None:
        """Makes `run` return; callable from any thread and from signal handlers."""
        self._stopped = True
        self._endpoint.wake()

    def join(self, nonce: str, rank: int) -> int:
        """Joins a job as its server `rank`; returns the job's number.

        The job is served once its plan arrives. Raises ClientError if the job service refuses or is
        absent.
        """
        with self._joining:
            return self._join(nonce, rank)

    def _join(self, nonce: str, rank: int) -> int:
        if nonce in self._memberships:
            raise JobRefusedError(f"job {self._memberships[nonce].job} is served here already")
        membership = Membership(
            self._service,
            nonce,
            jobs_pb2.SERVER,
            rank,
            Address(self._endpoint.ipv4, self._endpoint.port),
            lambda: self._later(lambda: self._follow(nonce)),
            environment=self._environment,
        )
        self._memberships[nonce] = membership
        self._followers[nonce] = ServerEpochs(self.state, membership.job)
        # Instructions may have arrived before the line above.
        self._later(lambda: self._follow(nonce))
        return membership.job

    def _later(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        self._endpoint.wake()

    def _interrupted(self) -> bool:
        self._failed += self.state.take_failures()
        state = self.state
        return bool(
            self._stopped or self._work or self._failed or state.has_updates or state.has_reports
        )

    def _replicate(self, update: Update) -> None:
        self._peers.replicate(
            update,
            lambda: self.state.waits(update),
            lambda: self.state.replicated(update),
        )

    def _move(self, task: MoveTask) -> None:
        """Fetches chunks that a chunk map gave this server, while the job goes on."""
        began = self._runtime.now()

        def done(parts: list[Snapshot]) -> None:
            self.state.moved(task, parts, self._runtime.now())
            _log.info(
                "job %d: %d of %d chunks, %d bytes, have moved here from %s in %.3g ms",
                *(task.job, sum(map(len, parts)), len(task.chunks)),
                *(sum(part.nbytes for part in parts), task.server),
                1000 * (self._runtime.now() - began),
            )

        self._peers.move(task, lambda: self.state.wants(task), done)

    def _give(self, job: int, epoch: int, source: int, chunks: Chunks) -> Snapshot:
        """Returns the chunks that another server fetches."""
        for follower in self._followers.values():
            if follower.job == job:
                return follower.give(epoch, source, chunks)
        raise NotHereError(f"job {job} is not served here")

    def _fetch(self, nonce: str, task: FetchTask) -> None:
        """Fetches the chunks that this server lacks, then answers the job service."""
        membership, follower = self._memberships[nonce], self._followers[nonce]

        def done() -> None:
            if self._memberships.get(nonce) is not membership:
                return
            try:
                membership.answer(follower.fetched(task))
            except NotHereError as error:
                _log.warning("job %d: %s; retrying", follower.job, error)
                self._fetch(nonce, task)

        _log.info("job %d: %d chunks from %s", follower.job, len(task.chunks), task.server)
        self._peers.fetch(
            follower.job,
            task,
            lambda: follower.wants(task),
            lambda part: follower.take(task, part),
            done,
        )

    def _follow(self, nonce: str) -> None:
        """Carries out the job service's pending instructions for a job."""
        membership = self._memberships.get(nonce)
        if membership is None:
            return
        if membership.failure is not None:
            _log.info("job %d is over: %s", membership.job, membership.failure)
            self._depart(nonce, "")
            failure = membership.failure
            if isinstance(failure, LeftBehindError) and not failure.replaced:
                self._come_back(nonce, membership.rank)
            return
        follower = self._followers[nonce]
        while (instruction := membership.take_instruction()) is not None:
            before = follower.epoch
            try:
                membership.answer(follower.answer(instruction))
            except ValueError as error:  # PlanError included
                _log.error("job %d: an instruction cannot be followed: %s", membership.job, error)
                self._depart(nonce, f"an instruction cannot be followed: {error}")
                return
            for task in follower.take_fetch_tasks():
                self._fetch(nonce, task)
            if follower.epoch != before:
                plan = instruction.plan
                if plan.HasField("optimizer") and len(plan.servers) == 1:
                    _log.warning("job %d: single server, so nothing is replicated", plan.job)
                self._endpoint.configure(
                    self.state.lanes,
                    self._link_rate or plan.link_rate,
                    by_priority=self.state.has_priorities,
                    timed=self.state.measures,
                )
                membership.runs(follower.epoch)
                _log.info("job %d is served, epoch %d", membership.job, follower.epoch)

    def _come_back(self, nonce: str, rank: int) -> None:
        """Joins again, holding nothing, after this process was stopped for longer than the job's
        lease."""

        def join() -> None:
            try:
                _log.info("job %d: joined again", self.join(nonce, rank))
            except ClientError as error:
                _log.warning("a job continued without this server: %s", error)

        self._runtime.thread(join, name="come-back", daemon=True).start()

    def _give_up(self, job: int, failure: Failure) -> None:
        """Leaves a job in which a chunk failed for good: it needs another plan."""
        _log.error("job %d: %s", job, failure)
        for nonce, membership in list(self._memberships.items()):
            if membership.job != job:
                continue
            try:
                membership.answer(self._followers[nonce].broken([failure]))
            except UnrecoverableChunkError as error:
                self._depart(nonce, str(error))

    def _depart(self, nonce: str, reason: str, outage: float | None = None) -> None:
        """Stops serving a job and leaves it, in a thread, as the calls for that must not delay
        other jobs."""
        membership = self._memberships.pop(nonce)
        if self._followers.pop(nonce).epoch:
            _log.info("job %d: %s", membership.job, self.state.counters(membership.job))
        self.state.remove(membership.job)

        def leave() -> None:
            try:
                membership.leave(reason, outage=outage)
            except ClientError as error:
                _log.warning(
                    "job %d: the job service could not be notified: %s", membership.job, error
                )

        self._departures = [thread for thread in self._departures if thread.is_alive()]
        self._departures.append(self._runtime.thread(leave))
        self._departures[-1].start()


def obey(server: ServerProcess, lines: Iterable[bytes]) -> None:
    """Carries out commands, answering each by a line on standard output."""
    for line in lines:
        match line.decode(errors="replace").split():
            case ["join", nonce, rank] if rank.isdecimal():
                try:
                    answer = f"joined {server.join(nonce, int(rank))}"
                except (ClientError, ValueError) as error:
                    answer = f"refused {' '.join(str(error).split())}"
            case []:
                continue
            case _:
                answer = "refused a command is: join NONCE RANK"
        print(answer, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until stopped; returns the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level="INFO", stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        endpoint = Endpoint(
            (options.address, options.port),
            link_rate=options.link_rate,
            queue_bytes=options.queue_bytes,
            offload=PLAIN if options.offload == "off" else None,
        )
    except OSError as error:
        print(f"server: {error.strerror}", file=sys.stderr)
        return 1
    with endpoint:
        try:
            server = ServerProcess(endpoint, options.service, options.link_rate)
        except CompilerError as error:
            print(f"server: {error}", file=sys.stderr)
            return 1
        except OSError as error:
            print(f"server: {error.strerror}", file=sys.stderr)
            return 1
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.stop())
        _log.info("receive buffer %d bytes; %s", endpoint.receive_buffer, endpoint.offload)
        print(f"ready {endpoint.address}:{endpoint.port}", flush=True)
        # Unbuffered: a thread that waits inside sys.stdin would hold its lock at exit.
        commands = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115
        HERE.runtime.thread(obey, args=(server, commands), daemon=True).start()
        try:
            server.run()
        except OSError as error:
            print(f"server: {error.strerror}", file=sys.stderr)
            return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hosts.server.__main__",
        description="A parameter server. Takes `join NONCE RANK` lines on standard input.",
    )
    parser.add_argument("--address", required=True, metavar="IPV4", help="address to serve on")
    parser.add_argument(
        "--port", type=int, default=PORT, help="UDP port: %(default)s + its core, 0 to 9"
    )
    parser.add_argument("--service", required=True, metavar="unix:PATH", help="the job service")
    parser.add_argument(
        "--link-rate",
        type=int,
        default=0,
        metavar="BIT/S",
        help="rate of this host's link, to size trains by (default: what the plans say)",
    )
    parser.add_argument(
        "--queue-bytes",
        type=int,
        metavar="BYTES",
        help="limit of the host interface's queue; the send buffer is kept below it",
    )
    parser.add_argument(
        "--offload",
        choices=["auto", "off"],
        default="auto",
        help="UDP segmentation offload: where a probe shows that it works, or never",
    )
    return parser
