# SPDX-License-Identifier: Apache-2.0
"""Moves load from straggling servers to others, as PSLD does (Chen et al., SoCC 2020).

Exploitation: a server straggles if its sums keep workers waiting for much longer than those of
others; what it sums in a round then says how fast it is. Slices move so that all servers are
predicted to be done at the same time. One that straggled and now waits for others is tried with
more load again. Exploration: while nothing is wrong, a small move is tried with decaying
probability. The publication's rule and its thresholds are not known; those here are stated below.

A move is kept if rounds became shorter by more than their noise, else undone, and its kind left
alone for some rounds.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.planning.balancing.balancer import Load, Measurements, Move, Round
from controller.planning.balancing.static import Static
from protocol.balance import Balance
from protocol.partition import Moved

__all__ = ["Psld"]

log = logging.getLogger(__name__)

# A server straggles if its sums take so many times the median's for so many rounds.
_SLOWER, _ROUNDS = 1.5, 2
# Rounds before and after a move that are compared, and standard errors that a difference has to
# exceed to be no noise.
_SAMPLE, _ERRORS = 4, 2.0
_LEAST_GAIN = 0.01  # of the duration of a round, that a move must be predicted to save
_FASTER = 1.5  # times its speed, that a server is tried with which others wait longer for
_REST = 20  # rounds for which nothing is tried after a move that did not help
_DECAY = 0.9  # of the probability of exploration, per move tried
_GOLDEN = (math.sqrt(5) - 1) / 2
_EXPLORED = 0.02  # of all chunks, that exploration moves


@dataclass
class _Trial:
    """A move that is being judged: the map before it, the rounds, and the speeds of servers."""

    what: str
    before: Moved
    rounds: list[float]
    speeds: dict[int, float]
    predicted: float
    skip: int = 2  # rounds that may be partly of the map before


class Psld(Static):
    """Moves slices between the servers of a job."""

    def __init__(self, asked: Balance) -> None:
        super().__init__(asked)
        self._random = random.Random(asked.seed)
        self._explore = asked.explore
        self._seconds: list[float] = []  # of rounds under the map at hand
        self._slow: dict[int, int] = {}  # rounds for which a server has straggled
        self._idle: dict[int, int] = {}  # rounds for which one that did has waited for others
        self._speeds: dict[int, float] = {}  # chunks a second, of servers that have straggled
        self._trial: _Trial | None = None
        self._rest = 0
        self._among: object = None

    def observe(self, measurements: Measurements) -> Iterable[Move]:
        """Implements Balancer."""
        yield from super().observe(measurements)
        complete, load = measurements.round, measurements.load
        if complete is None or load is None or load.moving:
            return
        among = measurements.epoch, frozenset(load.rates)
        if among != self._among:  # other servers, or other speeds
            self._among, self._trial, self._seconds = among, None, []
        self._seconds.append(complete.seconds)
        move = self._judge(load) if self._trial is not None else self._look(complete, load)
        if move is not None:
            self._seconds = []
            yield move

    def _judge(self, load: Load) -> Move | None:
        """Keeps or undoes the move under trial, once there are enough rounds."""
        trial = self._trial
        assert trial is not None
        if trial.skip:
            trial.skip -= 1
            self._seconds = []
            return None
        if len(self._seconds) < _SAMPLE:
            return None
        before, after = _mean(trial.rounds), _mean(self._seconds)
        noise = _ERRORS * math.hypot(_error(trial.rounds), _error(self._seconds))
        self._trial = None
        kept = before - after > noise
        log.info(
            "%s: rounds took %.4g s, predicted %.4g s, now %.4g s (noise %.2g s): %s",
            *(trial.what, before, trial.predicted, after, noise),
            "kept" if kept else "undone",
        )
        if kept:
            return None
        self._rest = _REST
        self._speeds = trial.speeds
        return Move(f"{trial.what} did not help", moved=trial.before)

    def _look(self, complete: Round, load: Load) -> Move | None:
        """Moves load if a server straggles, or to explore."""
        self._rest = max(0, self._rest - 1)
        usual = sorted(one.waited for one in complete.servers if one.sums)
        if len(usual) < 2:
            return None
        median = usual[(len(usual) - 1) // 2]
        for one in complete.servers:
            slow = one.sums > 0 and one.waited > _SLOWER * median
            self._slow[one.server] = self._slow.get(one.server, 0) + 1 if slow else 0
            waits = one.server in self._speeds and one.waited * _SLOWER < median
            self._idle[one.server] = self._idle.get(one.server, 0) + 1 if waits else 0
            if slow and one.ended > 0:
                self._speeds[one.server] = one.sums / one.ended
        if self._rest or len(self._seconds) < _SAMPLE:
            return None
        late = [server for server, rounds in self._slow.items() if rounds >= _ROUNDS]
        if late:
            return self._exploit(load, f"{_names(late)} straggles")
        idle = [server for server, rounds in self._idle.items() if rounds >= _ROUNDS]
        if idle:
            before = dict(self._speeds)
            for server in idle:
                faster = _FASTER * self._speeds[server]
                self._speeds[server] = min(load.rates.get(server, faster), faster)
            return self._exploit(load, f"{_names(idle)} has recovered", before)
        if self._random.random() < self._explore:
            return self._try(load)
        return None

    def _exploit(
        self, load: Load, what: str, before: dict[int, float] | None = None
    ) -> Move | None:
        """Returns the move that levels servers; before: their speeds, if the move fails."""
        speeds = {server: self._speeds.get(server, rate) for server, rate in load.rates.items()}
        now = _busy(load.owners, load, speeds)
        owners = _levelled(load, speeds, self.asked.most_bytes)
        then = _busy(owners, load, speeds)
        round_seconds = _mean(self._seconds)
        predicted = round_seconds - (max(now.values()) - max(then.values()))
        if round_seconds - predicted < _LEAST_GAIN * round_seconds:
            return None
        return self._move(load, owners, what, predicted, before)

    def _try(self, load: Load) -> Move | None:
        """Moves a few slices from one server to another."""
        servers = sorted(load.rates)
        source, target = self._random.sample(servers, 2)
        self._explore *= _DECAY
        left = _EXPLORED * sum(load.chunks)
        owners = list(load.owners)
        for one in range(len(owners)):
            if owners[one] == source and load.chunks[one] <= left:
                owners[one], left = target, left - load.chunks[one]
        if tuple(owners) == load.owners:
            return None
        what = f"trial from server {source} to {target}"
        return self._move(load, tuple(owners), what, _mean(self._seconds))

    def _move(
        self,
        load: Load,
        owners: tuple[int, ...],
        what: str,
        predicted: float,
        speeds: dict[int, float] | None = None,
    ) -> Move:
        self._trial = _Trial(
            *(what, load.moved, self._seconds[-_SAMPLE:]),
            dict(self._speeds) if speeds is None else speeds,
            predicted,
        )
        self._slow.clear()
        self._idle.clear()
        return Move(what, moved=load.map_to(owners))


def _names(servers: Iterable[int]) -> str:
    return "server " + ", ".join(str(server) for server in sorted(servers))


def _levelled(load: Load, speeds: Mapping[int, float], most_bytes: int) -> tuple[int, ...]:
    """Returns the server of each slice so that all servers are done at about the same time.

    Slices go from the server that is done last to the one that is done first with them, the largest
    that shortens the round first, and of equal ones from all over the keys: else a server would
    have much to do in a part of each round. most_bytes: that move at most, 0: any.
    """

    def order(one: int) -> tuple[int, float]:
        # Multiples of the golden ratio are spread evenly, however many of them there are.
        return load.chunks[one], one * _GOLDEN % 1

    owners = list(load.owners)
    chunks = _chunks(owners, load)
    left = most_bytes // max(1, load.chunk_bytes) if most_bytes else sum(load.chunks)
    of: dict[int, list[int]] = {server: [] for server in load.rates}
    for one in sorted(range(len(owners)), key=order):
        of[owners[one]].append(one)  # ascending
    while True:
        busy = {server: chunks[server] / speeds[server] for server in load.rates}
        source = max(busy, key=lambda server: (busy[server], -server))
        target = min(busy, key=lambda server: (busy[server], server))
        fitting = [
            one
            for one in of[source]
            if load.chunks[one] <= left
            and (chunks[target] + load.chunks[one]) / speeds[target] < busy[source]
        ]
        if not fitting or source == target:
            return tuple(owners)
        one = fitting[-1]
        owners[one] = target
        of[source].remove(one)
        of[target].append(one)
        of[target].sort(key=order)
        chunks[source] -= load.chunks[one]
        chunks[target] += load.chunks[one]
        left -= load.chunks[one]


def _chunks(owners: Iterable[int], load: Load) -> dict[int, int]:
    found = dict.fromkeys(load.rates, 0)
    for server, count in zip(owners, load.chunks, strict=True):
        found[server] += count
    return found


def _busy(owners: Iterable[int], load: Load, speeds: Mapping[int, float]) -> dict[int, float]:
    """Returns for how many seconds of a round each server is busy."""
    return {server: count / speeds[server] for server, count in _chunks(owners, load).items()}


def _mean(values: list[float]) -> float:
    return sum(values) / max(1, len(values))


def _error(values: list[float]) -> float:
    """Returns the standard error of the mean."""
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.sqrt(sum((one - mean) ** 2 for one in values) / (len(values) - 1) / len(values))
