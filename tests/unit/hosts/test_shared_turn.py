# SPDX-License-Identifier: Apache-2.0
"""Tests the lock that a worker's driver keeps while it waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from hosts.session.shared_turn import SharedTurn

SECONDS = 10.0  # within which everything has happened


class Holder(threading.Thread):
    """Keeps the lock until it is asked for it, again and again."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.asked, self.stopped = threading.Event(), False
        self.holding = threading.Event()
        self.turn = SharedTurn(threading.Condition(), self.asked.set)
        self.start()

    def run(self) -> None:
        while not self.stopped:
            with self.turn:
                if self.turn.keep():
                    self.holding.set()
                    assert self.asked.wait(SECONDS)
                    self.asked.clear()
                    self.holding.clear()
                self.turn.give_back()


@pytest.fixture
def holder() -> Iterator[Holder]:
    made = Holder()
    yield made
    made.stopped = True
    made.asked.set()
    made.join(SECONDS)
    assert not made.is_alive()


def in_threads(count: int, act: Callable[[], None]) -> None:
    threads = [threading.Thread(target=act) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()


def test_others_get_the_lock_that_is_kept(holder: Holder) -> None:
    done: list[int] = []

    def act() -> None:
        for _ in range(200):
            with holder.turn:
                done.append(len(done))

    in_threads(3, act)
    assert done == list(range(600))  # one at a time


def test_nothing_is_kept_from_a_thread_that_waits_for_a_condition(holder: Holder) -> None:
    """It needs the lock whenever it is notified, which asks for nothing."""
    state: list[str] = []
    ready: list[bool] = []

    def wait() -> None:
        with holder.turn:
            ready.append(holder.turn.wait_for(lambda: "go" in state, SECONDS))

    waits = threading.Thread(target=wait)
    assert holder.holding.wait(SECONDS)
    waits.start()
    while not holder.turn._asking:
        assert waits.is_alive()
    with holder.turn:
        assert not holder.turn.keep()
        state.append("go")
        holder.turn.notify_all()
    waits.join(SECONDS)
    assert ready == [True]


def test_a_thread_that_waits_for_a_while_only_asks_no_longer() -> None:
    asked = threading.Event()
    turn = SharedTurn(threading.Condition(), asked.set)
    with turn:
        assert turn.keep()
        got: list[bool] = []
        in_threads(1, lambda: got.append(turn.acquire(timeout=0.05)))
        assert got == [False]
        assert asked.is_set()
        turn.give_back()
        assert turn.keep()
