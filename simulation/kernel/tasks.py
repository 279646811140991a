# SPDX-License-Identifier: Apache-2.0
"""Cooperative tasks (greenlets) in virtual time, in place of threads.

One task runs at a time, until it waits; running takes no virtual time. Tasks run in the order in
which they are started or woken, and a timeout ends exactly at its time. A run is therefore
independent of the machine's scheduler and speed.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from greenlet import GreenletExit, greenlet

from simulation.kernel.processes import Process
from simulation.links.trains import NEVER, SECOND, picoseconds

log = logging.getLogger("virtual")

_FEW = 64  # cancelled timers that may stay in the queue


class Waiter:
    """One wait of a task; `woken`: it was woken before its timeout."""

    __slots__ = ("alarm", "over", "task", "woken")

    def __init__(self, task: Task) -> None:
        self.task = task
        self.alarm: Alarm | None = None
        self.over = self.woken = False


class Alarm:
    """Work scheduled at a time, unless it is cancelled."""

    __slots__ = ("over", "work")

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.over = False


def _nothing() -> None:
    pass


class Tasks:
    """A Runtime in the virtual time of a node.

    clock: returns the node's time in ps. The node calls `run` after its events, and `ring` at the
        time of the first alarm, `due`.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.running: Task | None = None
        self.waiting: set[Task] = set()  # tasks that have begun and not ended
        self._ready: deque[Task] = deque()
        self._held: list[Task] = []  # tasks of stopped processes that could run
        self._alarms: list[tuple[int, int, Alarm]] = []
        self._given_up = 0
        self._numbers = itertools.count()
        self._hub = greenlet.getcurrent()
        self.closed = False
        # Tasks are being ended: the running one reaches nothing outside of it any more.
        self.ending = False

    # What the node calls

    @property
    def busy(self) -> bool:
        """True if a task can run now."""
        return bool(self._ready)

    @property
    def due(self) -> int:
        """Returns the time of the first alarm (ps); NEVER without one."""
        alarms = self._alarms
        while alarms and alarms[0][2].over:
            heapq.heappop(alarms)
            self._given_up -= 1
        return alarms[0][0] if alarms else NEVER

    def due_beside(self, alarm: Alarm | None) -> int:
        """Returns the time of the first alarm (ps) other than `alarm`."""
        alarms, first = self._alarms, NEVER
        if not alarms:
            return NEVER
        if alarms[0][2] is not alarm and not alarms[0][2].over:
            return alarms[0][0]
        places = [1, 2]
        for place in places:  # of a heap, so only behind one that does not count can be an earlier
            if place < len(alarms) and alarms[place][0] < first:
                if alarms[place][2] is alarm or alarms[place][2].over:
                    places += 2 * place + 1, 2 * place + 2
                else:
                    first = alarms[place][0]
        return first

    def run(self) -> None:
        """Runs the runnable tasks in turn until all wait. Raises their uncaught errors."""
        self._hub = greenlet.getcurrent()
        while self._ready:
            task = self._ready.popleft()
            self.running = task
            # Control returns here when a task ends or raises.
            task.green.parent = self._hub
            try:
                task.green.switch()
            finally:
                self.running = None

    def ring(self) -> None:
        """Executes all alarms that are due."""
        while self.due <= self.clock():
            alarm = heapq.heappop(self._alarms)[2]
            alarm.over = True
            alarm.work()

    def alarm(self, at: int, work: Callable[[], None]) -> Alarm:
        """Schedules work at a time (ps); it must not wait."""
        alarm = Alarm(work)
        heapq.heappush(self._alarms, (at, next(self._numbers), alarm))
        return alarm

    def give_up(self, alarm: Alarm) -> None:
        """Cancels an alarm."""
        if alarm.over:
            return
        alarm.over = True
        alarm.work = _nothing  # it may stay in the queue for long; what it refers to may not
        self._given_up += 1
        if self._given_up > _FEW and 2 * self._given_up > len(self._alarms):
            self._alarms = [one for one in self._alarms if not one[2].over]
            heapq.heapify(self._alarms)
            self._given_up = 0

    def begin(self, task: Task) -> None:
        """Makes a task runnable: at once, or when its process goes on."""
        stopped = task.process is not None and task.process.stopped
        (self._held if stopped else self._ready).append(task)

    # Processes

    @property
    def process(self) -> Process | None:
        """The process of the running task."""
        return self.running.process if self.running is not None else None

    def stop(self, process: Process) -> None:
        """Stops a process, as SIGSTOP does."""
        process.stopped = True
        ready, self._ready = self._ready, deque()
        for task in ready:
            self.begin(task)

    def resume(self, process: Process) -> None:
        """Lets a stopped process go on, as SIGCONT does."""
        process.stopped = False
        held, self._held = self._held, []
        for task in held:
            self.begin(task)

    def kill(self, process: Process, how: str) -> None:
        """Ends a process where its tasks wait, as SIGKILL does.

        Python's own clean-up (``finally``, ``with``) runs while frames are removed, as nothing else
        frees them, but reaches nothing: what the process held is released before, waiting ends it,
        calls and packets are not sent.
        """
        process.end(how)
        self._ready = deque(task for task in self._ready if task.process is not process)
        self._held = [task for task in self._held if task.process is not process]
        self._end([task for task in self.waiting if task.process is process])

    def _end(self, tasks: Iterable[Task]) -> None:
        before, self.ending = self.running, True
        for task in sorted(tasks, key=lambda one: one.number):
            self.waiting.discard(task)
            task.green.parent = greenlet.getcurrent()
            self.running = task
            try:
                task.green.throw(GreenletExit)
            except Exception:
                log.exception("%s did not end well", task.name)
        self.running, self.ending = before, self.closed

    def pause(self, waiters: deque[Waiter], timeout: float | None) -> bool:
        """Suspends the running task among `waiters` until it is woken or the timeout (s) ends.

        Returns whether it was woken.
        """
        task = self.running
        if self.ending:
            raise GreenletExit
        if task is None:
            raise RuntimeError("only a task can wait, and none is running")
        waiter = Waiter(task)
        self.prolong(waiter, timeout)
        waiters.append(waiter)
        try:
            self._hub.switch()
        finally:
            waiter.over = True
            if not waiter.woken and waiter in waiters:
                waiters.remove(waiter)
            if waiter.alarm is not None:
                self.give_up(waiter.alarm)
        return waiter.woken

    def prolong(self, waiter: Waiter, timeout: float | None) -> None:
        """Lets the timeout (s) of a wait begin now, in place of an earlier one; None: none."""
        if waiter.alarm is not None:
            self.give_up(waiter.alarm)
            waiter.alarm = None
        if timeout is not None:
            # At least 1 ps, so that a wait for a later time does not end at the current one.
            least = 1 if timeout > 0 else 0
            at = min(self.clock() + max(least, picoseconds(max(0.0, timeout))), NEVER)
            if at < NEVER:
                waiter.alarm = self.alarm(at, lambda: self._expire(waiter))

    def wake_first(self, waiters: deque[Waiter]) -> Task | None:
        """Wakes the task that has waited for longest; None if there is none."""
        while waiters:
            waiter = waiters.popleft()
            if not waiter.over:
                waiter.over = waiter.woken = True
                self.begin(waiter.task)
                return waiter.task
        return None

    def wake(self, waiters: deque[Waiter]) -> None:
        """Wakes all waiting tasks in order."""
        while self.wake_first(waiters) is not None:
            pass

    def _expire(self, waiter: Waiter) -> None:
        if not waiter.over:
            waiter.over = True
            self.begin(waiter.task)

    def close(self) -> None:
        """Ends all tasks where they wait, at the end of a run."""
        self.closed = True
        self._ready.clear()
        self._held.clear()
        self._alarms.clear()
        self._end(self.waiting)

    # Runtime

    def now(self) -> float:
        """Implements Runtime."""
        return self.clock() / SECOND

    def sleep(self, seconds: float) -> None:
        """Implements Runtime."""
        self.pause(deque(), seconds)

    def current(self) -> object:
        """Implements Runtime."""
        return self if self.running is None else self.running

    def thread(
        self,
        target: Callable[..., Any],
        name: str | None = None,
        args: tuple[Any, ...] = (),
        daemon: bool = False,
        process: Process | None = None,
    ) -> Task:
        """Implements Runtime. process: of the task; None: that of the running one."""
        return Task(self, target, name, args, next(self._numbers), process or self.process)

    def timer(self, seconds: float, work: Callable[[], Any]) -> TaskTimer:
        """Implements Runtime."""
        return TaskTimer(self, seconds, work)

    def lock(self) -> TaskLock:
        """Implements Runtime."""
        return TaskLock(self, reentrant=False)

    def rlock(self) -> TaskLock:
        """Implements Runtime."""
        return TaskLock(self, reentrant=True)

    def condition(self) -> TaskCondition:
        """Implements Runtime."""
        return TaskCondition(self)

    def event(self) -> TaskEvent:
        """Implements Runtime."""
        return TaskEvent(self)

    def future(self) -> Future[Any]:
        """Implements Runtime."""
        return TaskFuture(self)


class Task:
    """Implements threading.Thread."""

    def __init__(
        self,
        tasks: Tasks,
        target: Callable[..., Any],
        name: str | None,
        args: tuple[Any, ...],
        number: int,
        process: Process | None,
    ) -> None:
        self.process = process
        self.name = name or getattr(target, "__name__", "task")
        self.number = number
        self.green = greenlet(self._run)
        self._tasks = tasks
        self._work = target, args
        self._begun = False
        self._ended = TaskEvent(tasks)

    def start(self) -> None:
        """Implements threading.Thread."""
        if self._begun:
            raise RuntimeError(f"{self.name} was started before")
        self._begun = True
        if not (self._tasks.ending or (self.process is not None and self.process.how)):
            self._tasks.waiting.add(self)
            self._tasks.begin(self)

    def join(self, timeout: float | None = None) -> None:
        """Implements threading.Thread."""
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        """Implements threading.Thread."""
        return self._begun and not self._ended.is_set()

    def _run(self) -> None:
        target, args = self._work
        try:
            target(*args)
        finally:
            self._tasks.waiting.discard(self)
            self._ended.set()


class TaskTimer:
    """Implements threading.Timer."""

    def __init__(self, tasks: Tasks, seconds: float, work: Callable[[], Any]) -> None:
        self._tasks = tasks
        self._seconds = seconds
        self._work = work
        self._process = tasks.process
        self._alarm: Alarm | None = None

    def start(self) -> None:
        """Implements threading.Timer."""
        at = self._tasks.clock() + picoseconds(self._seconds)
        self._alarm = self._tasks.alarm(at, self._ring)

    def cancel(self) -> None:
        """Implements threading.Timer."""
        if self._alarm is not None:
            self._tasks.give_up(self._alarm)

    def _ring(self) -> None:
        self._tasks.thread(self._work, name="timer", process=self._process).start()


class TaskLock:
    """Implements threading.Lock and RLock, in FIFO order."""

    def __init__(self, tasks: Tasks, *, reentrant: bool) -> None:
        self._tasks = tasks
        self._reentrant = reentrant
        self._owner: object = None
        self._count = 0
        self._waiters: deque[Waiter] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Implements threading.Lock."""
        me = self._tasks.current()
        if self._tasks.ending:
            return True
        if self._count and not (self._reentrant and self._owner is me):
            if not blocking:
                return False
            # `release` has made the woken task the owner.
            return self._tasks.pause(self._waiters, None if timeout < 0 else timeout)
        self._owner = me
        self._count += 1
        return True

    def release(self) -> None:
        """Implements threading.Lock."""
        if self._tasks.ending:
            return
        if not self._count:
            raise RuntimeError("released a lock that no task holds")
        self._count -= 1
        if not self._count:
            self._hand_over()

    def _hand_over(self) -> None:
        self._owner = self._tasks.wake_first(self._waiters) if self._waiters else None
        self._count = 0 if self._owner is None else 1

    def held_by_me(self) -> bool:
        """True if the running task holds it; of ending tasks, any may."""
        return self._tasks.ending or (self._count > 0 and self._owner is self._tasks.current())

    def release_all(self) -> int:
        """Releases all levels of a reentrant lock; returns their number."""
        count, self._count = self._count, 0
        self._hand_over()
        return count

    def reacquire(self, count: int) -> None:
        """Acquires the lock with `count` levels."""
        self.acquire()
        self._count = count

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class TaskCondition:
    """Implements threading.Condition, with a reentrant lock."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._lock = TaskLock(tasks, reentrant=True)
        self._waiters: deque[Waiter] = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def wait(self, timeout: float | None = None) -> bool:
        """Implements threading.Condition."""
        if not self._lock.held_by_me():
            raise RuntimeError("cannot wait on a lock that is not held")
        count = self._lock.release_all()
        try:
            return self._tasks.pause(self._waiters, timeout)
        finally:
            self._lock.reacquire(count)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Implements threading.Condition."""
        until = None if timeout is None else self._tasks.now() + timeout
        while not (found := predicate()):
            left = None if until is None else until - self._tasks.now()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n: int = 1) -> None:
        """Implements threading.Condition."""
        if not self._lock.held_by_me():
            raise RuntimeError("cannot notify on a lock that is not held")
        for _ in range(n):
            self._tasks.wake_first(self._waiters)

    def notify_all(self) -> None:
        """Implements threading.Condition."""
        self.notify(len(self._waiters))

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class TaskEvent:
    """Implements threading.Event."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._set = False
        self._waiters: deque[Waiter] = deque()

    def is_set(self) -> bool:
        """Implements threading.Event."""
        return self._set

    def set(self) -> None:
        """Implements threading.Event."""
        self._set = True
        self._tasks.wake(self._waiters)

    def clear(self) -> None:
        """Implements threading.Event."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Implements threading.Event."""
        if not self._set:
            self._tasks.pause(self._waiters, timeout)
        return self._set


class TaskFuture(Future[Any]):
    """Implements concurrent.futures.Future."""

    def __init__(self, tasks: Tasks) -> None:
        super().__init__()
        # The callback must not refer to the future: in a cycle, results of a hundred megabytes
        # would stay until the garbage collector runs.
        self._over = over = TaskEvent(tasks)
        self.add_done_callback(lambda _: over.set())

    def result(self, timeout: float | None = None) -> Any:
        """Implements Future."""
        self._over.wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Implements Future."""
        self._over.wait(timeout)
        return super().exception(0)
