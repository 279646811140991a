# SPDX-License-Identifier: Apache-2.0
"""A worker in a job: its membership, its transport from epoch to epoch, and its calls under way.

A thread of its own, the driver, feeds the transport from the socket, carries out instructions of
the job service and settles calls, from `begin` to `leave`, independent of the application: so sums
arrive while it computes, and a worker that computes does not delay a change of plan for all others.
Threads that access the state machines hold `turn`; the driver holds it for a step at a time, or
until another thread asks for it (``hosts.session.shared_turn``), and never while it runs callbacks
of the application.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import numpy as np

from hosts.data.reports import Statistics
from hosts.epoch_change import UnrecoverableChunkError
from hosts.errors import CallOrderError, ClientError, JobRefusedError, UseAfterLeaveError
from hosts.net.arrivals import Clock, Pending, Released, Seconds
from hosts.net.driver import Attachment, Turn, drive
from hosts.net.environment import HERE, HostEnvironment
from hosts.net.udp import Endpoint
from hosts.session.calls import Call, Calls
from hosts.session.membership import Membership
from hosts.session.shared_turn import SharedTurn
from hosts.worker.epoch_change import WorkerEpochs
from hosts.worker.explanation import Outline
from hosts.worker.round_barrier import Rounds
from hosts.worker.transport import WorkerTransport
from protocol import jobs_pb2
from protocol.header import Batch
from protocol.plan import Address
from protocol.runtime import WORKER_THREAD, Condition
from protocol.state import Arrays

_log = logging.getLogger(__name__)

_HEARTBEAT_WAIT = 0.5  # s

Submit = Callable[[WorkerTransport], int]


class Participation:
    """One worker in one job, with the options of Membership.

    Hold `turn` to access `follower`, its transport or the calls.

    broken: the reason why this worker can only leave; None if it can go on.
    """

    def __init__(
        self,
        service: str,
        nonce: str,
        rank: int,
        endpoint: Attachment,
        outage: float,
        environment: HostEnvironment = HERE,
    ) -> None:
        self.environment, self._runtime = environment, environment.runtime
        self.follower: WorkerEpochs | None = None
        self.turn: Condition = self._runtime.condition()
        if isinstance(endpoint, Endpoint):
            self.turn = SharedTurn(self.turn, endpoint.wake)
        self.broken: BaseException | None = None
        self._calls = Calls()
        self._names: list[str] = []
        self._rounds: Rounds | None = None
        self._endpoint = endpoint
        # Seconds for which chunk maps held rounds back, by number of the change.
        self.blocked: dict[int, float] = {}
        self._blocking: tuple[int, float] | None = None  # the change that does now, and since when
        self._completed_at = 0.0  # when the last round was complete
        self._settled: list[
            tuple[Call, BaseException | None]
        ] = []  # their futures are to be completed
        self._unsettled: list[Call] = []  # calls whose futures are not done
        self._arrived, self._arrived_at = 0, 0.0  # sums not taken yet, and when the last came
        self._due = math.inf  # deadline of `drive`
        self._wake_up = self._runtime.event()  # wakes a driver that has stopped driving
        self._stopped = False
        self._driver = self._runtime.thread(self._run, name=f"{WORKER_THREAD}{rank}", daemon=True)
        environment.expect(endpoint, self._expected)
        self.membership = Membership(
            service,
            nonce,
            jobs_pb2.WORKER,
            rank,
            Address(endpoint.ipv4, endpoint.port),
            self._on_change,
            unanswered=self._unanswered,
            awaited=self._awaited,
            outage=outage,
            environment=environment,
        )

    @property
    def transport(self) -> WorkerTransport | None:
        """The transport of the current plan; None before the first."""
        return self.follower.transport if self.follower is not None else None

    def running_transport(self) -> WorkerTransport:
        """Returns the transport. Raises CallOrderError before the first plan."""
        transport = self.transport
        if transport is None:
            raise CallOrderError("call init_service first")
        return transport

    def statistics(self) -> Statistics:
        """Returns the counts of the transport. Raises CallOrderError before the first plan."""
        if not isinstance(self.turn, SharedTurn):  # one thread at a time runs in virtual time
            return self.running_transport().statistics
        with self.turn:  # native code counts
            return self.running_transport().statistics

    def outline(self, most: int) -> Outline | None:
        """Returns the transport's outline with up to `most` chunks of each stream; None before a
        plan."""
        with self.turn:
            transport = self.transport
            return None if transport is None else transport.outline(self._runtime.now(), most)

    def check_thread(self) -> None:
        """Raises CallOrderError in the driver's thread, which must never block."""
        if self._runtime.current() is self._driver:
            raise CallOrderError(
                "a future's callback makes no calls: it runs in the thread that calls wait for"
            )

    def begin(self, follower: WorkerEpochs, names: list[str]) -> None:
        """Starts the driver, which carries out instructions. names: of the keys, by number."""
        self._rounds = Rounds(follower.barrier, len(names))
        self._names = names
        self.follower = follower
        self._driver.start()

    def wait_for_plan(self, timeout: float | None) -> None:
        """Blocks until the first plan. Raises ClientError, or TimeoutError after `timeout` s."""
        with self.turn:
            there = self.turn.wait_for(
                lambda: self.membership.failure or self.broken or self.transport, timeout
            )
            if not there:
                raise TimeoutError(
                    f"job {self.membership.job} has no plan after {timeout} s: not every worker "
                    "and server has connected and named its keys"
                )
            self.check()

    def enter(self, call: Call, submit: Submit, provide: Callable[[], Arrays]) -> None:
        """Begins a call when no boundary holds it back; the driver completes it.

        submit: submits its chunks, returns the first ticket. provide: returns the application's
        arrays for a worker that joins; called in this thread, before the call begins. Raises what
        StallTimeout raises, ClientError.
        """
        try:
            while not self._begin(call, submit, provide):
                call.patience.look()
        except BaseException as error:
            # The other workers make this call, too.
            with self.turn:
                self._break(error, call)
            self._settle()
            raise
        self._send_at_once()
        self._endpoint.wake()

    def _send_at_once(self) -> None:
        """Takes a turn in the caller's thread: the driver's would first have to wake up, and the
        caller may go on to compute."""
        try:
            with self.turn:
                self._take_turns(0)
        except OSError as error:
            with self.turn:
                self._break(error)
            self._settle()

    def _begin(self, call: Call, submit: Submit, provide: Callable[[], Arrays]) -> bool:
        """Begins a call if the barrier is open, else waits for a while; returns true if it
        began."""
        with self.turn:
            self.check()
            follower, rounds = self.follower, self._rounds
            assert follower is not None
            assert follower.transport is not None
            assert rounds is not None
            before = follower.barrier.pushed
            number = rounds.begin(call.numbers)
            if number is not None:
                self._count_blocked(None)
                follower.begins(number)
                call.start(submit(follower.transport), number, before)
                self._calls.add(call)
                self._unsettled.append(call)
                return True
            self._count_blocked(follower.barrier.maps.undecided)
            self.membership.answer(follower.said())
            wanted = follower.barrier.donation
            if wanted is None:
                self.turn.wait(max(0.0, call.patience.next - self._runtime.now()))
        if wanted is not None:
            self._donate(follower, wanted, provide)
        return False

    def _count_blocked(self, number: int | None) -> None:
        """Counts until now, if a change held a round back; this one does from now on."""
        before, now = self._blocking, self._runtime.now()
        if before is not None and before[0] == number:
            return
        if before is not None:
            self.blocked[before[0]] = self.blocked.get(before[0], 0.0) + now - before[1]
        self._blocking = None if number is None else (number, now)

    def _donate(self, follower: WorkerEpochs, number: int, provide: Callable[[], Arrays]) -> None:
        """Gives the application's state to a worker that joins."""
        data, unable = None, ""
        try:
            data = follower.state(provide())
        except Exception as error:  # of the application; reported to the joining worker
            _log.exception("job %d: a worker that joins gets no state", self.membership.job)
            unable = f"{type(error).__name__}: {error}"
        with self.turn:
            follower.barrier.give(number, data, unable)
            self.membership.answer(follower.said())

    def under_way(self, keys: set[int] | None = None) -> list[Call]:
        """Returns calls whose futures are not done; of these keys, or all."""
        with self.turn:
            calls = self._unsettled
            return [one for one in calls if keys is None or not keys.isdisjoint(one.numbers)]

    def leave(self, reason: str, *, others_go_on: bool = False) -> None:
        """See Membership; a worker that finished hands over what others may lack. Calls under way
        fail."""
        self._stopped = True
        self._wake_up.set()
        self._endpoint.wake()
        if self._driver.is_alive():
            self._driver.join()
        results: list[jobs_pb2.Result] = []
        levels = b""
        with self.turn:
            self._break(UseAfterLeaveError("this worker has left its job, and did not wait"))
            transport = self.transport
            if transport is not None:
                transport.freeze()
                if not reason:
                    results = transport.results()
                    levels = transport.levels().astype("<u4").tobytes()
        self._settle()
        self.membership.leave(reason, results, levels, others_go_on=others_go_on)

    # -- what drives, and is driven ---------------------------------------------------------------

    def on_packets(self, now: float, batch: Batch) -> None:
        """See WorkerTransport."""
        assert self.follower is not None
        with self.turn:
            self.follower.on_packets(now, batch)

    def on_train(self, times: Seconds, batch: Batch, clock: Clock) -> Released | Pending | None:
        """See WorkerTransport. Only the last packet taken may complete a call."""
        assert self.follower is not None
        with self.turn:
            if not self._calls.open or float(times[-1]) >= self._due:
                return None
            transport, enough = self.follower.transport, None
            if transport is not None and self._calls.fewest - transport.arrived <= len(times):
                self._collect(every=True)  # `until_done` counts what is missing
                enough = self._calls.until_done
            found = self.follower.on_train(times, batch, clock, enough)
            if isinstance(found, Pending):
                return Pending(found.ready, lambda: self._took(times, found.finish()))
            return None if found is None else self._took(times, found)

    def _took(self, times: Seconds, released: Released) -> Released:
        """Notes the sums among packets with these arrival times (n,)."""
        with self.turn:
            transport = self.running_transport()
            arrived = transport.arrived
            if arrived != self._arrived:
                self._arrived, self._arrived_at = arrived, float(times[released.taken - 1])
            ends = transport.failing or arrived >= self._calls.fewest
            return released._replace(ends=True) if ends else released

    def on_turn(self) -> Turn | None:
        """Takes turns at the socket until the sums of a call are there, as long as no other thread
        needs the state machines; None if packets have to be taken step by step."""
        turns = self.turn
        if not isinstance(turns, SharedTurn):
            return None
        with turns:
            enough = self._calls.fewest if turns.keep() else 0
            try:
                return self._take_turns(enough)
            finally:
                turns.give_back()

    def _take_turns(self, enough: int) -> Turn | None:
        transport, endpoint = self.transport, self._endpoint
        if transport is None or not isinstance(endpoint, Endpoint):
            return None
        turn = transport.turns(endpoint, enough, self._due)
        if turn is not None and turn.summed:
            self._arrived, self._arrived_at = transport.arrived, turn.summed
        return turn

    def poll(self, now: float) -> tuple[Batch | None, float]:
        """See WorkerTransport."""
        assert self.follower is not None
        with self.turn:
            return self.follower.poll(now)

    def _run(self) -> None:
        try:
            while not self._stopped:
                with self.turn:
                    self._due = self._calls.next
                drive(
                    self,
                    self._endpoint,
                    self._attend,
                    deadline=self._due,
                    clock=self._runtime.now,
                    on_train=self.on_train,
                    on_turn=self.on_turn,
                )
                self._look_at_the_clock()
        except Exception as error:
            _log.error("job %d: this worker can only leave: %s", self.membership.job, error)
            with self.turn:
                self._break(error)
            self._settle()
        # It cannot send, but other members must not wait for it in a change of plan.
        while not self._stopped:
            self._wake_up.wait()
            self._wake_up.clear()
            with self.turn:
                self._obey()

    def _expected(self) -> tuple[float, float]:
        """Returns what HostEnvironment.expect asks for.

        Nobody hears of less than a call's sums, unless some fail their check twice.
        """
        transport = self.transport
        if transport is None or self.broken is not None:
            return 0, 0
        if not self._calls.open:
            return math.inf, self._due
        if transport.met_wrong:
            return 0, 0
        return self._calls.fewest - transport.arrived, self._due

    def _attend(self) -> bool:
        """Does the work between packets; returns true if `drive` must return."""
        with self.turn:
            self._obey()
            self._collect()
            due = self._calls.next
        if self._settled:
            self._settle()
        return self._stopped or due < self._due

    def _collect(self, every: bool = False) -> None:
        """Takes sums if they complete a call, or `every` one, and ends calls that cannot complete;
        hold the turn."""
        follower, rounds = self.follower, self._rounds
        assert follower is not None
        assert rounds is not None
        transport = follower.transport
        if not self._calls.open or transport is None:
            return
        arrived = transport.arrived
        if arrived != self._arrived:
            self._arrived, self._arrived_at = arrived, self._runtime.now()
        if not (
            every
            or arrived >= self._calls.fewest
            or transport.failing
            or self.membership.failure is not None
        ):
            return
        done = self._calls.take(transport.take_completed(), self._arrived_at)
        self._arrived = 0
        before = follower.barrier.completed
        for call in done:
            # No worker joins within a round, so equal numbers have equal members.
            call.members = {number: follower.members[number] for number in call.workers}
            rounds.complete(call.round)
            self._settled.append((call, None))
        if follower.barrier.completed != before and transport.plan.measures:
            self.membership.answer([self._measured(follower.barrier.completed, transport)])
        if done:
            self.membership.answer(follower.said())
        if self._calls.open and self.membership.failure is not None:
            self._break(self.membership.failure)
        try:
            self.membership.answer(follower.broken())
        except UnrecoverableChunkError as error:
            self._break(ClientError(str(error)))

    def _measured(self, number: int, transport: WorkerTransport) -> jobs_pb2.ResyncRequest:
        """Returns the report of what came from each server in a round."""
        came, now = transport.take_responses(), self._arrived_at
        seconds, self._completed_at = now - self._completed_at, now
        first = came["first"].min()
        # The link may be behind with what a server on this host has answered.
        ended = np.where(came["sums"] > 0, np.maximum(came["last"] - first, 0.0), 0.0)
        measured = jobs_pb2.Measured(
            round=number,
            seconds=seconds,
            sums=came["sums"].tolist(),
            waited=came["waited"].tolist(),
            ended=ended.tolist(),
            sent=max(0.0, float(came["sent"].max() - first)) if came["sums"].any() else 0.0,
        )
        return jobs_pb2.ResyncRequest(epoch=transport.plan.epoch, measured=measured)

    def _look_at_the_clock(self) -> None:
        with self.turn:
            if self._calls.open:
                self._collect(every=True)
        self._settle()
        late = self._calls.overdue()  # calls the application, so without the turn
        if late is not None:
            with self.turn:
                self._break(late[1], late[0])
            self._settle()

    def _obey(self) -> None:
        """Carries out instructions of the job service; hold the turn."""
        follower, membership = self.follower, self.membership
        assert follower is not None
        changed = membership.failure is not None
        while (instruction := membership.take_instruction()) is not None:
            changed = True
            before = follower.epoch
            try:
                membership.answer(follower.answer(instruction))
            except (ValueError, KeyError) as error:  # PlanError included
                text = f"an instruction of the job service cannot be carried out: {error}"
                membership.fail(JobRefusedError(text))
                break
            if follower.epoch != before:
                _log.info("job %d: epoch %d", membership.job, follower.epoch)
                membership.runs(follower.epoch)
        if changed:
            self.turn.notify_all()

    def check(self) -> None:
        """Raises ClientError if no call can begin; hold the turn."""
        if self.broken is not None:
            raise self._earlier() from self.broken
        if self.membership.failure is not None:
            raise self.membership.failure

    def _earlier(self) -> ClientError:
        return ClientError(f"an earlier call failed and this worker can only leave: {self.broken}")

    def _break(self, error: BaseException, of: Call | None = None) -> None:
        """Fails all calls, as no more sums arrive; hold the turn.

        of: calls that get this error, the others get a general one; None: all.
        """
        if self.broken is None:
            self.broken = error
        self.own_values()  # callers that get an error may change them
        for call in self._calls.clear():
            about = of is None or call is of
            self._settled.append((call, error if about else self._earlier()))
        self.turn.notify_all()

    def _settle(self) -> None:
        """Completes the futures of finished calls; do not hold the turn."""
        if self._settled:
            with self.turn:
                settled, self._settled = self._settled, []
            for call, error in settled:
                call.settle(error)
                with self.turn:
                    self._unsettled.remove(call)

    def own_values(self) -> None:
        """Copies what calls under way still read from their callers' arrays; hold the turn."""
        if self.transport is not None:
            self.transport.own_values()

    def _on_change(self) -> None:
        self._wake_up.set()
        self._endpoint.wake()

    def _unanswered(self) -> float:
        # A racy read from another thread suffices here.
        return self.follower.unanswered(self._runtime.now()) if self.follower is not None else 0.0

    def _awaited(self) -> tuple[int, str]:
        # A heartbeat does not wait for the turn; the next one reports as well.
        if not self.turn.acquire(timeout=_HEARTBEAT_WAIT):
            return 0, ""
        try:
            if self._calls.open:
                self._collect(every=True)
            awaited = self._calls.awaited
        finally:
            self.turn.release()
        return (0, "") if awaited is None else (awaited[0], self._names[awaited[1]])
