# SPDX-License-Identifier: Apache-2.0
"""Tests threads in virtual time against `threading`, with exact times."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import TimeoutError as NotYetError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.runtime import REAL, Runtime
from simulation.kernel.processes import Process
from simulation.kernel.tasks import Tasks
from simulation.links.trains import NEVER, SECOND


class Clock:
    """A runtime whose time goes from alarm to alarm."""

    def __init__(self) -> None:
        self.now = 0
        self.runtime = Tasks(lambda: self.now)

    def run(self) -> None:
        """Until no task has anything left to do."""
        self.runtime.run()
        while self.runtime.due < NEVER:
            self.now = self.runtime.due
            self.runtime.ring()
            self.runtime.run()


def played(play: Callable[[Runtime, list[object]], None]) -> list[object]:
    """What a thread notes, here and in virtual time, where it is the same."""
    notes: list[object] = []
    real: list[object] = []
    clock = Clock()
    clock.runtime.thread(play, args=(clock.runtime, notes)).start()
    clock.run()
    thread = REAL.thread(play, args=(REAL, real))
    thread.start()
    thread.join()
    assert notes == real
    return notes


def test_waiting_takes_exactly_as_long_as_was_said():
    clock, runtime = Clock(), None
    runtime = clock.runtime
    times: list[int] = []

    def wait() -> None:
        runtime.sleep(0.25)
        times.append(clock.now)
        assert not runtime.event().wait(1e-9)
        times.append(clock.now)
        condition = runtime.condition()
        with condition:
            assert not condition.wait(0.5)
        times.append(clock.now)
        with condition:
            assert not condition.wait_for(lambda: False, 2.0)
        times.append(clock.now)

    runtime.thread(wait).start()
    clock.run()
    quarter = SECOND // 4
    assert times == [quarter, quarter + 1000, 3 * quarter + 1000, 11 * quarter + 1000]
    assert not runtime.waiting


def test_tiny_waits_advance_time():
    """A deadline is a float, and may be later than now by less than a picosecond."""
    clock = Clock()
    waited: list[int] = []

    def wait() -> None:
        clock.runtime.sleep(1e-14)
        waited.append(clock.now)

    clock.runtime.thread(wait).start()
    clock.run()
    assert waited == [1]


def test_locks_are_fair():
    clock = Clock()
    runtime, order = clock.runtime, []
    lock = runtime.rlock()

    def hold(number: int) -> None:
        runtime.sleep(0.001 * number)
        with lock, lock:
            order.append(number)
            runtime.sleep(1.0)

    for number in (3, 1, 2, 0):
        runtime.thread(hold, args=(number,)).start()
    clock.run()
    assert order == [0, 1, 2, 3]
    assert clock.now == 4 * SECOND


def test_lock_timeout_leaves_lock_free():
    clock = Clock()
    runtime, notes = clock.runtime, []
    lock = runtime.lock()

    def first() -> None:
        with lock:
            runtime.sleep(1.0)

    def second() -> None:
        notes.append(lock.acquire(blocking=False))
        notes.append(lock.acquire(timeout=0.5))
        notes.append(lock.acquire())
        lock.release()

    runtime.thread(first).start()
    runtime.thread(second).start()
    clock.run()
    assert notes == [False, False, True]
    assert clock.now == SECOND


def conversation(runtime: Runtime, notes: list[object]) -> None:
    """Threads that wait for each other by all means that there are."""
    turn, event = runtime.condition(), runtime.event()
    said: list[str] = []

    def listener() -> None:
        with turn:
            notes.append(turn.wait_for(lambda: len(said) == 2))
        event.set()
        with turn:
            turn.wait_for(lambda: len(said) == 3)
        notes.append(list(said))

    thread = runtime.thread(listener, name="listener", daemon=True)
    notes.append(thread.is_alive())
    thread.start()
    notes.append(thread.is_alive())
    for word in "ab":
        with turn:
            said.append(word)
            turn.notify_all()
    notes.append(event.wait(10))
    future = runtime.future()
    runtime.timer(0.001, lambda: future.set_result("from a timer")).start()
    given_up = runtime.timer(60, lambda: notes.append("never"))
    given_up.start()
    given_up.cancel()
    with pytest.raises(NotYetError):
        runtime.future().result(0.001)
    notes.append(future.result(10))
    failing = runtime.future()
    failing.set_exception(KeyError("x"))
    notes.append(repr(failing.exception(10)))
    with turn:
        said.append("c")
        turn.notify()
    thread.join()
    notes.append(thread.is_alive())


def test_threads_synchronise_like_real_ones():
    notes = played(conversation)
    assert notes[:2] == [False, True]
    assert "from a timer" in notes
    assert "never" not in notes


@pytest.mark.parametrize("runtime", [REAL, Clock().runtime], ids=["real", "virtual"])
def test_future_result_is_freed_without_gc(runtime: Runtime):
    gc.disable()
    try:
        large = np.zeros(8)
        gone = weakref.ref(large)
        future = runtime.future()
        future.set_result(large)
        assert future.result(0) is large
        del large, future
        assert gone() is None
    finally:
        gc.enable()


def test_uncaught_task_exception_reaches_node():
    clock = Clock()

    def fail() -> None:
        clock.runtime.sleep(1.0)
        raise ZeroDivisionError("of a task")

    clock.runtime.thread(fail).start()
    with pytest.raises(ZeroDivisionError, match="of a task"):
        clock.run()
    assert clock.now == SECOND


def test_only_tasks_wait():
    with pytest.raises(RuntimeError, match="only a task can wait"):
        Clock().runtime.sleep(1.0)


def test_tasks_that_still_wait_end_with_the_run():
    clock = Clock()
    runtime, ended = clock.runtime, []

    def wait(lock: bool) -> None:
        condition = runtime.condition()
        try:
            with condition:
                condition.wait() if lock else runtime.sleep(1e9)
        finally:
            ended.append(lock)

    for lock in (True, False):
        runtime.thread(wait, args=(lock,)).start()
    runtime.run()
    assert len(runtime.waiting) == 2
    runtime.close()
    assert ended == [True, False]
    assert not runtime.waiting


def test_a_killed_process_ends_where_its_tasks_wait_and_reaches_nothing():
    """It frees what it had, gives back what it held, and leaves other processes as they are."""
    clock = Clock()
    runtime, notes = clock.runtime, []
    killed, other = Process("killed"), Process("other")
    event, lock = runtime.event(), runtime.rlock()
    released: list[str] = []
    killed.holds(released.append)
    killed.holds(released.append)()  # given back before

    class Memory:
        pass

    held = Memory()
    freed = weakref.ref(held)

    def work(mine: Memory | None) -> None:
        assert runtime.process is killed
        runtime.timer(2, lambda: notes.append("timer")).start()
        try:
            runtime.sleep(1 if mine is None else 1e6)
            notes.append("slept")
            with lock:
                runtime.sleep(1e6)
        finally:
            event.set()  # wakes what waits elsewhere, as the machine would; nothing of its own
            runtime.thread(notes.append, args=("started",)).start()
            runtime.sleep(1)
            notes.append("went on")

    def wait() -> None:
        notes.append("began")
        event.wait(10)
        notes.append(clock.now)

    for mine in (None, held):
        runtime.thread(work, args=(mine,), process=killed).start()
    runtime.thread(work, args=(None,), process=killed)  # never started
    runtime.thread(wait, process=other).start()
    del held, mine
    runtime.run()
    clock.now = runtime.due
    runtime.ring()
    runtime.run()
    assert notes == ["began", "slept"]
    runtime.kill(killed, "was killed")
    assert (killed.how, released) == ("was killed", ["was killed"])
    gc.collect()
    assert freed() is None
    assert {task.process for task in runtime.waiting} <= {other}
    runtime.thread(notes.append, args=("too late",), process=killed).start()
    clock.run()
    assert notes == ["began", "slept", SECOND]
    assert not runtime.waiting


def test_a_stopped_process_goes_on_where_it_was():
    """What wakes it meanwhile does so when it goes on; timeouts have then passed."""
    clock = Clock()
    runtime, notes = clock.runtime, []
    process, event = Process("stopped"), runtime.event()

    def work(what: str) -> None:
        notes.append((what, event.wait(2 if what == "event" else 1), clock.now))

    for what in ("event", "timeout"):
        runtime.thread(work, args=(what,), process=process).start()
    runtime.run()
    runtime.stop(process)
    event.set()
    clock.run()
    assert not notes
    clock.now = 5 * SECOND
    runtime.resume(process)
    clock.run()
    assert notes == [("event", True, 5 * SECOND), ("timeout", True, 5 * SECOND)]


def test_alarms_that_are_given_up_take_no_memory():
    clock = Clock()
    runtime = clock.runtime
    event = runtime.event()

    def many() -> None:
        for _ in range(2000):
            runtime.timer(0.001, event.set).start()
            event.wait(1e6)
            event.clear()

    runtime.thread(many).start()
    most = 0
    runtime.run()
    while runtime.waiting:
        clock.now = runtime.due
        runtime.ring()
        runtime.run()
        most = max(most, len(runtime._alarms))
    gc.collect()
    assert most < 300


@given(
    st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=40),
    st.integers(0, 50),
)
def test_the_first_alarm_beside_one_is_the_least_that_counts(
    alarms: list[tuple[int, bool]], beside: int
) -> None:
    tasks = Tasks(lambda: 0)
    made = [tasks.alarm(at, lambda: None) for at, _ in alarms]
    for alarm, (_, given_up) in zip(made, alarms, strict=True):
        if given_up:
            tasks.give_up(alarm)
    left_out = made[beside] if beside < len(made) else None
    counting = [
        at
        for (at, given_up), one in zip(alarms, made, strict=True)
        if not given_up and one is not left_out
    ]
    assert tasks.due_beside(left_out) == min(counting, default=NEVER)
