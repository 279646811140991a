# SPDX-License-Identifier: Apache-2.0
"""Moves load from straggling servers to others, as PSLD does (Chen et al., SoCC 2020).

Exploitation: what a server sums in a round, over the time until it is done, is its speed, or less
if it waits for workers. Slices move so that all servers are predicted to be done at the same time,
if that saves more than it may be mistaken by. A straggler that has recovered is done before the
others, so it gets load back by the same rule. Exploration: while nothing is wrong, a small move is
tried with decaying probability. A spare server is given slices if rounds are predicted to become
shorter by it; a server that does next to nothing becomes a spare. The publication's rule and its
thresholds are not known; those here are stated below.

A move is kept if rounds became shorter by more than their noise, else undone, and nothing is tried
for some rounds.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.planning.balancing.balancer import Load, Measurements, Move, Round
from controller.planning.balancing.levelling import levelled
from controller.planning.balancing.static import Static
from protocol.balance import Balance
from protocol.partition import Moved

__all__ = ["Psld"]

log = logging.getLogger(__name__)

# Share of a round that a move must be predicted to save: to begin with, and after a move that was
# kept, so that load that is nearly level is levelled once begun, and else left alone.
_BEGINS, _GOES_ON = 0.05, 0.01
# Standard errors of servers' times that it must save besides.
_UNSURE = 4.0
# Rounds that servers' times are the mean of: at least, and at most.
_FEWEST, _MOST = 2, 16
_CHANGED = 0.1  # share by which as few rounds are longer or shorter than all before: those are over
# Rounds after a move that are compared with as many before, and standard errors that the difference
# has to exceed.
_SAMPLE, _ERRORS = 4, 2.0
_SKIPPED = 2  # rounds after a move that may be partly of the map before
_REST = 20  # rounds for which nothing is tried after a move that did not help
# Rounds over which a spare server has to save the time that its parameters take to arrive. After
# one that did not help, the next is tried later, each time so many times as many rounds.
_HORIZON, _LATER = 100, 4
_LITTLE = 0.01  # share of what all servers sum, that is not worth a server
_DECAY = 0.9  # of the probability of exploration, per move tried
_EXPLORED = 0.02  # of all chunks, that exploration moves


@dataclass
class _Trial:
    """A move that is being judged.

    before, spares: the map and the spare servers that are undone to.
    rounds: durations of the last ones before it. predicted: of those after it.
    scales: it changes how many servers have slices.
    """

    what: str
    before: Moved
    spares: frozenset[int]
    rounds: list[float]
    predicted: float
    scales: bool


class Psld(Static):
    """Moves slices between the servers of a job."""

    by_speed = True

    def __init__(self, asked: Balance) -> None:
        super().__init__(asked)
        self._random = random.Random(asked.seed)
        self._explore = asked.explore
        self._rounds: list[Round] = []  # under the map at hand
        self._speeds: dict[int, float] = {}  # chunks a second, as last measured
        self._trial: _Trial | None = None
        self._least = _BEGINS
        self._skip = self._rest = 0
        self._scales_after = 0  # rounds in which the number of servers stays
        self._scales_rest = _REST
        self._epoch, self._servers = 0, frozenset[int]()  # that rounds are of

    def observe(self, measurements: Measurements) -> Iterable[Move]:
        """Implements Balancer."""
        yield from super().observe(measurements)
        complete, load = measurements.round, measurements.load
        if complete is None or load is None or load.moving:
            return
        among = measurements.epoch, frozenset(load.rates)
        if among != (self._epoch, self._servers):  # other servers; a first round finds exponents
            (self._epoch, self._servers), self._trial = among, None
            self._begin(skip=1)
        self._scales_after = max(0, self._scales_after - 1)
        if self._skip:
            self._skip -= 1
            return
        self._rounds = _since_change([*self._rounds, complete])[-_MOST:]
        move = self._judge() if self._trial is not None else self._look(load)
        if move is not None:
            self._begin(skip=_SKIPPED)
            yield move

    def _begin(self, skip: int) -> None:
        """Begins with another map, whose first rounds are skipped."""
        self._rounds, self._skip = [], skip

    def _judge(self) -> Move | None:
        """Keeps or undoes the move under trial, once there are enough rounds."""
        trial = self._trial
        assert trial is not None
        rounds = self._seconds()
        if len(rounds) < _SAMPLE:
            return None
        before, after = _mean(trial.rounds), _mean(rounds)
        noise = _ERRORS * math.hypot(_error(trial.rounds), _error(rounds))
        self._trial = None
        worse = max(0.0, trial.predicted - before)  # without a server that does little
        kept = before - after > (-noise - worse if worse else noise)
        log.info(
            "%s: rounds took %.4g s, predicted %.4g s, now %.4g s (noise %.2g s): %s",
            *(trial.what, before, trial.predicted, after, noise),
            "kept" if kept else "undone",
        )
        self._least = _GOES_ON if kept else _BEGINS
        if kept:
            return None
        self._rest = _REST
        if trial.scales:
            self._scales_after, self._scales_rest = self._scales_rest, self._scales_rest * _LATER
        spares = trial.spares if trial.scales else None
        return Move(f"{trial.what} did not help", moved=trial.before, spares=spares)

    def _look(self, load: Load) -> Move | None:
        """Moves load if that is predicted to save time, or to explore."""
        self._rest = max(0, self._rest - 1)
        ended = self._measure()
        if self._rest or len(self._rounds) < _FEWEST or not ended:
            return None
        usual = sorted(self._speeds.values())[len(self._speeds) // 2]
        speeds = {server: self._speeds.get(server, usual) for server in load.rates}
        seconds = _mean(self._seconds())
        last = max(ended, key=lambda server: ended[server])
        least = self._least * seconds + _UNSURE * self._error_of_ended()
        if ended[last] - sum(load.chunks) / sum(speeds.values()) > least:
            most = self.asked.most_bytes / load.chunk_bytes or math.inf
            owners = levelled(load.owners, load.chunks, speeds, most)
            saved = ended[last] - _longest(owners, load, speeds)
            if saved > least:
                return self._move(load, owners, f"server {last} straggles", seconds - saved)
        if len(self._rounds) >= _SAMPLE:
            self._least = _BEGINS
            move = None if self._scales_after else self._scale(load, speeds, ended[last], least)
            if move is not None:
                return move
            if self._random.random() < self._explore:
                return self._try(load)
        return None

    def _scale(
        self, load: Load, speeds: dict[int, float], last: float, least: float
    ) -> Move | None:
        """Gives a spare server slices if that is predicted to save time, or takes all from one.

        last: seconds until the last server is done. least: that must be saved.
        """
        total, each = sum(load.chunks), sum(speeds.values())
        usual = sorted(speeds.values())[len(speeds) // 2]
        seconds = _mean(self._seconds())
        for server in sorted(load.spares):
            speed = self._speeds.get(server, usual)
            saved = last - total / (each + speed)
            arrival = total * speed / (each + speed) / load.spares[server]
            if saved - arrival / _HORIZON > least:
                owners = levelled(load.owners, load.chunks, {**speeds, server: speed})
                what = f"server {server} is added"
                return self._move(load, owners, what, seconds - saved, scales=True)
        least_server = min(speeds, key=lambda server: (speeds[server], server))
        if len(speeds) > 1 and speeds[least_server] < _LITTLE * each:
            rest = {server: one for server, one in speeds.items() if server != least_server}
            longer = total / sum(rest.values()) - total / each
            owners = levelled(load.owners, load.chunks, rest)
            what = f"server {least_server} does little and is left out"
            spares = frozenset((*load.spares, least_server))
            return self._move(load, owners, what, seconds + longer, spares, scales=True)
        return None

    def _measure(self) -> dict[int, float]:
        """Measures speeds; returns by server the mean seconds until it was done with a round."""
        ended: dict[int, float] = {}
        for one in self._rounds[-1].servers:
            of = [server for each in self._rounds for server in each.servers]
            mine = [other for other in of if other.server == one.server]
            seconds = sum(other.ended for other in mine)
            if one.sums and seconds > 0:
                ended[one.server] = seconds / len(mine)
                self._speeds[one.server] = sum(other.sums for other in mine) / seconds
        return ended

    def _error_of_ended(self) -> float:
        """Returns the standard error of the means that ``_measure`` returns."""
        of: dict[int, list[float]] = {}
        for each in self._rounds:
            for server in each.servers:
                of.setdefault(server.server, []).append(server.ended)
        return math.sqrt(_mean([_error(times) ** 2 for times in of.values()]))

    def _seconds(self) -> list[float]:
        return [one.seconds for one in self._rounds]

    def _try(self, load: Load) -> Move | None:
        """Moves a few slices from one server to another, or to a spare one."""
        source = self._random.choice(sorted(load.rates))
        target = self._random.choice([*sorted({*load.rates} - {source}), *sorted(load.spares)])
        self._explore *= _DECAY
        left = _EXPLORED * sum(load.chunks)
        owners = list(load.owners)
        for one in range(len(owners)):
            if owners[one] == source and load.chunks[one] <= left:
                owners[one], left = target, left - load.chunks[one]
        if tuple(owners) == load.owners:
            return None
        what = f"trial from server {source} to {target}"
        seconds = _mean(self._seconds())
        return self._move(load, tuple(owners), what, seconds, scales=target in load.spares)

    def _move(
        self,
        load: Load,
        owners: tuple[int, ...],
        what: str,
        predicted: float,
        spares: frozenset[int] | None = None,
        *,
        scales: bool = False,
    ) -> Move:
        """Returns a move, and begins its trial."""
        rounds = self._seconds()[-_SAMPLE:]
        self._trial = _Trial(what, load.moved, frozenset(load.spares), rounds, predicted, scales)
        if scales:
            self._servers = frozenset(owners)
        return Move(what, moved=load.map_to(owners), spares=spares)


def _since_change(rounds: list[Round]) -> list[Round]:
    """Returns the last rounds if they are much longer or shorter than all before, else all."""
    new = [one.seconds for one in rounds[-_FEWEST:]]
    old = [one.seconds for one in rounds[:-_FEWEST]]
    if old and (min(new) > (1 + _CHANGED) * max(old) or max(new) < (1 - _CHANGED) * min(old)):
        return rounds[-_FEWEST:]
    return rounds


def _longest(owners: Iterable[int], load: Load, speeds: Mapping[int, float]) -> float:
    """Returns for how many seconds of a round the server with the most to do is busy."""
    busy = dict.fromkeys(speeds, 0.0)
    for server, count in zip(owners, load.chunks, strict=True):
        busy[server] += count / speeds[server]
    return max(busy.values())


def _mean(values: list[float]) -> float:
    return sum(values) / max(1, len(values))


def _error(values: list[float]) -> float:
    """Returns the standard error of the mean."""
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.sqrt(sum((one - mean) ** 2 for one in values) / (len(values) - 1) / len(values))
