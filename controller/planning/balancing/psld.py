# SPDX-License-Identifier: Apache-2.0
"""Moves load from straggling servers to others, as PSLD does (Chen et al., SoCC 2020).

Exploitation: what a server sums in a round, over the time until it is done, is its speed, or less
if it waits for workers. Its queue tells which: where contributions wait for much less time than at
the server that is done last, the measured speed is a lower bound. Such a server is taken for as
fast, for its link, as the fastest one with a queue, but for at most twice as fast as measured. So a
straggler that has recovered gets load back; one that has been relieved has a queue, as long as it
is done with the others, and shows how slow it is. Slices move so that all servers are
predicted to be done at the same time, if that saves more than it may be mistaken by. Exploration:
while nothing is wrong, a small move is tried with decaying probability. A spare server is given
slices if rounds are predicted to become shorter by it; a server that does next to nothing becomes a
spare. The publication's rule and its thresholds are not known; those here are stated below.

A move is kept if rounds became shorter by more than their noise, else undone, and nothing is tried
for some rounds, each time more. Where rounds become longer or shorter without a move, what was
measured and tried before does not count.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.planning.balancing.balancer import Load, Measurements, Move, Round
from controller.planning.balancing.levelling import levelled
from controller.planning.balancing.static import Static
from protocol.balance import Balance
from protocol.partition import Moved

log = logging.getLogger(__name__)

# Share of a round that a move must be predicted to save: to begin with, and after a move that was
# kept, so that load that is nearly level is levelled once begun, and else left alone.
_BEGINS, _GOES_ON = 0.05, 0.01
# Standard errors of servers' times that it must save besides.
_UNSURE = 4.0
# Rounds that servers' times are the mean of: at least, and at most.
_FEWEST, _MOST = 2, 16
_CHANGED = 0.1  # share by which times differ from all before at least, if these are over
# Rounds after a move that are compared with as many before, and standard errors that the difference
# has to exceed.
_SAMPLE, _ERRORS = 4, 2.0
_SKIPPED = 2  # rounds after a move that may be partly of the map before
# Rounds for which nothing is tried after a move that did not help, and times as many after the next
# one that does not.
_REST, _LATER = 20, 4
_HORIZON = 100  # rounds in which a spare server has to save the time that its parameters need
_QUEUED = 0.5  # of what contributions wait at the server that is done last: less is no queue
_FASTER = 2.0  # times as fast as measured that a server without a queue is taken for at most
_LITTLE = 0.01  # share of what all servers sum, that is not worth a server
_DECAY = 0.9  # of the probability of exploration, per move tried
_EXPLORED = 0.02  # of all chunks, that exploration moves


@dataclass
class _Trial:
    """A move that is being judged.

    before, spares: the map and the spare servers that are undone to.
    rounds: the last ones before it. predicted: seconds of those after it.
    scales: it changes how many servers have slices.
    """

    what: str
    before: Moved
    spares: frozenset[int]
    rounds: list[Round]
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
        self._speeds: dict[int, float] = {}  # chunks a second, as last measured or supposed
        self._trial: _Trial | None = None
        self._least = _BEGINS
        self._skip = self._rest = 0
        self._next_rest = _REST
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
        self._add(complete)
        ended, error = self._measure(load)
        move = self._judge()
        if move is None and self._trial is None:
            move = self._look(load, ended, error)
            if move is not None:
                self._begin(skip=_SKIPPED)
        if move is not None:
            yield move

    def _add(self, complete: Round) -> None:
        """Adds a round; forgets those before a change, and what was measured and tried in them."""
        rounds = [*self._rounds, complete][-_MOST:]
        changed = _last_change(_seconds(rounds))
        self._rounds = rounds[changed:]
        if changed:
            before = rounds[changed - 1].seconds
            log.info("rounds take %.4g s, and took %.4g s before", complete.seconds, before)
            self._trial, self._rest = None, 0

    def _begin(self, skip: int, rounds: Iterable[Round] = ()) -> None:
        """Begins with another map, whose first rounds are skipped; `rounds` are known of it."""
        self._rounds, self._skip = list(rounds), skip

    def _judge(self) -> Move | None:
        """Keeps or undoes the move under trial, once there are enough rounds. Fewer are enough if
        they are much longer than before."""
        trial = self._trial
        if trial is None:
            return None
        rounds, old = _seconds(self._rounds), _seconds(trial.rounds)
        if len(rounds) < (_FEWEST if min(rounds) > (1 + _CHANGED) * max(old) else _SAMPLE):
            return None
        before, after = _mean(old), _mean(rounds)
        noise = _ERRORS * math.hypot(_error(old), _error(rounds))
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
            self._next_rest = _REST
            return None
        self._begin(_SKIPPED, trial.rounds)  # its map was in use before
        if trial.scales:
            self._rest = _REST
            self._scales_after, self._scales_rest = self._scales_rest, self._scales_rest * _LATER
        else:
            self._rest, self._next_rest = self._next_rest, self._next_rest * _LATER
        spares = trial.spares if trial.scales else None
        return Move(f"{trial.what} did not help", moved=trial.before, spares=spares)

    def _look(self, load: Load, ended: Mapping[int, float], error: float) -> Move | None:
        """Moves load if that is predicted to save time, or to explore.

        ended, error: as ``_measure`` returns them.
        """
        self._rest = max(0, self._rest - 1)
        if self._rest or not ended:
            return None
        usual = sorted(self._speeds.values())[len(self._speeds) // 2]
        speeds = {server: self._speeds.get(server, usual) for server in load.rates}
        seconds = _mean(_seconds(self._rounds))
        last = max(ended, key=lambda server: ended[server])
        least = self._least * seconds + _UNSURE * error
        if ended[last] - sum(load.chunks) / sum(speeds.values()) > least:
            most = self.asked.most_bytes / load.chunk_bytes or math.inf
            owners = levelled(load.owners, load.chunks, speeds, most)
            saved = ended[last] - _longest(owners, load, speeds)
            # Servers may have summed more than their chunks, some again in float32, and so seem to
            # be done sooner without a move, too.
            if saved > least and owners != load.owners:
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
        seconds = _mean(_seconds(self._rounds))
        for server in sorted(load.spares):
            speed = self._speeds.get(server, usual)
            saved = last - total / (each + speed)
            arrival = total * speed / (each + speed) / load.spares[server]
            if saved - arrival / _HORIZON > least:
                owners = levelled(load.owners, load.chunks, {**speeds, server: speed})
                if server not in owners:  # its share is less than a slice
                    continue
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

    def _measure(self, load: Load) -> tuple[dict[int, float], float]:
        """Measures speeds; returns by server the mean seconds until it was done with a round, and
        their standard error; nothing while there are too few rounds."""
        ended: dict[int, float] = {}
        if len(self._rounds) < _FEWEST:
            return ended, 0.0
        late: dict[int, tuple[float, float]] = {}  # when done, and waiting, in the last rounds
        errors: list[float] = []
        for server in load.rates:
            mine = [one for each in self._rounds for one in each.servers if one.server == server]
            mine = mine[_last_change([one.ended for one in mine]) :]
            if not mine or not mine[-1].sums or not mine[-1].ended:
                continue
            times = [one.ended for one in mine]
            few = mine[-_FEWEST:]
            ended[server] = _mean(times)
            errors.append(_error(times))
            late[server] = sum(one.ended for one in few), sum(one.waited for one in few)
            self._speeds[server] = sum(one.sums for one in mine) / sum(times)
        if ended:
            least = _QUEUED * max(late.values())[1]
            queued = [server for server, (_, waited) in late.items() if waited >= least]
            share = max(self._speeds[server] / load.rates[server] for server in queued)
            for server in ended.keys() - queued:
                measured = self._speeds[server]
                likely = min(share * load.rates[server], _FASTER * measured)
                self._speeds[server] = max(measured, likely)
        return ended, math.sqrt(_mean([error**2 for error in errors]))

    def _try(self, load: Load) -> Move | None:
        """Moves a few slices from one server to another, or a spare one; None if there is none."""
        source = self._random.choice(sorted(load.rates))
        others = [*sorted({*load.rates} - {source}), *sorted(load.spares)]
        if not others:
            return None
        target = self._random.choice(others)
        self._explore *= _DECAY
        left = _EXPLORED * sum(load.chunks)
        owners = list(load.owners)
        for one in range(len(owners)):
            if owners[one] == source and load.chunks[one] <= left:
                owners[one], left = target, left - load.chunks[one]
        if tuple(owners) == load.owners:
            return None
        what = f"trial from server {source} to {target}"
        seconds = _mean(_seconds(self._rounds))
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
        rounds = self._rounds[-_SAMPLE:]
        self._trial = _Trial(what, load.moved, frozenset(load.spares), rounds, predicted, scales)
        if scales:
            self._servers = frozenset(owners)
        return Move(what, moved=load.map_to(owners), spares=spares)


def _last_change(times: Sequence[float]) -> int:
    """Returns the index of the first of the last times that are all much longer, or all much
    shorter, than all before; 0 if fewer than suffice are."""
    for first in range(len(times) - _FEWEST, 0, -1):
        old, new = times[:first], times[first:]
        if min(new) > (1 + _CHANGED) * max(old) or max(new) < (1 - _CHANGED) * min(old):
            return first
    return 0


def _longest(owners: Iterable[int], load: Load, speeds: Mapping[int, float]) -> float:
    """Returns for how many seconds of a round the server with the most to do is busy."""
    busy = dict.fromkeys(speeds, 0.0)
    for server, count in zip(owners, load.chunks, strict=True):
        busy[server] += count / speeds[server]
    return max(busy.values())


def _seconds(rounds: Iterable[Round]) -> list[float]:
    return [one.seconds for one in rounds]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def _error(values: list[float]) -> float:
    """Returns the standard error of the mean."""
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.sqrt(sum((one - mean) ** 2 for one in values) / (len(values) - 1) / len(values))
