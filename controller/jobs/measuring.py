# SPDX-License-Identifier: Apache-2.0
"""Puts together what workers and servers measured of a job's servers in each round."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from controller.jobs.members import Membership, Role
from controller.planning.balancing.balancer import Round, ServerRound
from controller.planning.balancing.straggling import Smoothed, Stragglers
from protocol import jobs_pb2

__all__ = ["Rounds"]

_MOST_SECONDS = 1e9
_MOST_COUNT = 1 << 53  # exact in a double
# Workers are a round apart; the others are of workers that report what is not.
_MOST_ROUNDS = 16
# A server without sums for so many rounds has no slices, and what it was like is forgotten.
_IDLE_ROUNDS = 4

_Seconds = npt.NDArray[np.float64]


class Rounds:
    """The rounds that not all workers have reported yet, and what is known of servers so far.

    Servers report about once a round, on their own: what a round has of them is of their last
    report, which may be of the round before.
    """

    def __init__(self) -> None:
        self.drop()

    def drop(self) -> None:
        """Forgets all, as in a new plan epoch."""
        self._reports: dict[int, dict[Membership, jobs_pb2.Measured]] = {}
        # Of workers that are in rounds of their own: reports since the last round, and its number.
        self._own: dict[Membership, list[jobs_pb2.Measured]] = {}
        self._apart = 0
        self._handled: dict[int, float] = {}  # seconds a sum, by server
        self._of_workers: dict[int, Smoothed] = {}
        self._of_servers: dict[int, Smoothed] = {}
        self._stragglers = Stragglers()
        self._idle: dict[int, int] = {}  # rounds in a row without sums, by server

    def take(
        self,
        place: Membership,
        measured: jobs_pb2.Measured,
        workers: Collection[Membership],
        servers: tuple[int, ...],
        *,
        apart: bool = False,
    ) -> Round | None:
        """Takes a worker's report; returns the round once all workers have reported it.

        servers: those of the plan by rank, numbered as in the job.
        apart: workers are in rounds of their own. Then one is complete, numbered from 1, once each
            has reported one or more since the last, whose means count for it.

        Raises ValueError for a report that does not have an entry for each server, or is not a
        worker's.
        """
        if place.role is not Role.WORKER:
            raise ValueError("a server has no rounds")
        for column in (measured.sums, measured.waited, measured.ended):
            if len(column) != len(servers):
                raise ValueError(f"a round of {len(column)} servers, the plan has {len(servers)}")
        _check_seconds((measured.seconds, measured.sent, *measured.waited, *measured.ended))
        if apart:
            own = self._own.setdefault(place, [])
            own[:] = [*own, measured][-_MOST_ROUNDS:]
            if not all(self._own.get(worker) for worker in workers):
                return None
            self._apart += 1
            means = [_mean(self._own[worker]) for worker in workers]
            self._own = {}
            found = self._round(self._apart, means, servers)
            self._smooth(found)
            return found
        if len(self._reports) > _MOST_ROUNDS:
            del self._reports[min(self._reports)]
        reports = self._reports.setdefault(measured.round, {})
        reports[place] = measured
        if not all(worker in reports for worker in workers):
            return None
        # Older rounds lack reports of workers that have left.
        self._reports = {n: r for n, r in self._reports.items() if n > measured.round}
        found = self._round(measured.round, list(reports.values()), servers)
        self._smooth(found)
        return found

    def take_from_server(
        self, place: Membership, measured: jobs_pb2.ServerMeasured, servers: Collection[int]
    ) -> None:
        """Takes a server's report. Raises ValueError for one that cannot be, or is not a server's
        of the plan."""
        if place.role is not Role.SERVER or place.rank not in servers:
            raise ValueError("it is no server of the plan, and has no times of one")
        _check_seconds((measured.seconds, measured.handled, measured.queued, measured.optimized))
        if not measured.sums:
            raise ValueError("times of no sums")
        if max(measured.sums, measured.received_bytes, measured.sent_bytes) >= _MOST_COUNT:
            raise ValueError(f"a count of {_MOST_COUNT} or more")
        sums, seconds = measured.sums, measured.seconds
        if not seconds:
            return
        self._handled[place.rank] = measured.handled / sums
        self._of_servers.setdefault(place.rank, Smoothed()).add(
            handled=measured.handled / sums,
            queued=measured.queued / sums,
            optimized=measured.optimized / sums,
            # Little's law: sums that come a second, times the seconds that each stays.
            holding=measured.handled / seconds,
            summing=measured.summing,
            received=measured.received_bytes / seconds,
            sent=measured.sent_bytes / seconds,
        )

    def times(self, servers: Sequence[int], names: Sequence[str]) -> list[jobs_pb2.ServerTimes]:
        """Returns what is known of servers.

        servers: of the plan, by rank. names: of all of the job's.
        """
        none = Smoothed()
        rows = []
        for server in servers:
            at_workers = self._of_workers.get(server, none)
            at_server = self._of_servers.get(server, none)
            row = jobs_pb2.ServerTimes(
                server=names[server],
                rounds=at_workers.rounds,
                straggles=server in self._stragglers.now,
            )
            for one, fields in ((at_workers, _OF_WORKERS), (at_server, _OF_SERVERS)):
                for name in fields:
                    setattr(row, name, one.get(name))
            rows.append(row)
        return rows

    def _round(
        self, number: int, reports: Sequence[jobs_pb2.Measured], servers: Sequence[int]
    ) -> Round:
        sums = np.array([one.sums for one in reports], np.int64)
        waited = np.array([one.waited for one in reports])
        ended = np.array([one.ended for one in reports])
        blamed = _blame(ended, np.array([one.sent for one in reports])).mean(axis=0)
        return Round(
            number,
            float(np.mean([one.seconds for one in reports])),
            tuple(
                ServerRound(
                    server,
                    int(sums[:, rank].max()),
                    float(waited[:, rank].sum() / max(1, sums[:, rank].sum())),
                    float(ended[:, rank].max()),
                    self._handled.get(server, 0.0),
                    float(blamed[rank]),
                )
                for rank, server in enumerate(servers)
            ),
        )

    def _smooth(self, complete: Round) -> None:
        waited: dict[int, float] = {}
        for one in complete.servers:
            self._idle[one.server] = 0 if one.sums else self._idle.get(one.server, 0) + 1
            if self._idle[one.server] == _IDLE_ROUNDS:
                for known_so_far in (self._handled, self._of_workers, self._of_servers):
                    known_so_far.pop(one.server, None)
            smoothed = self._of_workers.setdefault(one.server, Smoothed())
            known: Mapping[str, float] = {"waited": one.waited} if one.sums else {}
            smoothed.add(sums=one.sums, blamed=one.blamed, **known)
            if one.sums:
                waited[one.server] = smoothed.get("waited")
        self._stragglers.observe(waited)


_OF_WORKERS = ("sums", "waited", "blamed")
_OF_SERVERS = ("handled", "queued", "optimized", "holding", "summing", "received", "sent")


def _mean(reports: Sequence[jobs_pb2.Measured]) -> jobs_pb2.Measured:
    """Returns the mean of a worker's reports."""
    sums, waited, ended = (
        np.mean([getattr(one, name) for one in reports], axis=0)
        for name in ("sums", "waited", "ended")
    )
    return jobs_pb2.Measured(
        seconds=float(np.mean([one.seconds for one in reports])),
        sums=np.rint(sums).astype(np.int64).tolist(),
        waited=waited.tolist(),
        ended=ended.tolist(),
        sent=float(np.mean([one.sent for one in reports])),
    )


def _check_seconds(times: Collection[float]) -> None:
    if not all(0 <= one < _MOST_SECONDS for one in times):  # NaN is none of them
        raise ValueError("a round that took less than no time, or years")


def _blame(ended: _Seconds, sent: _Seconds) -> _Seconds:
    """Returns how many seconds of its waiting each worker blames on each server (workers, servers).

    A worker waits from when its last contribution has left (`sent`, (workers,)) until its last sum
    is there; each moment's blame is shared alike by all servers that still owe it sums. They owe
    none from `ended` (workers, servers) on.
    """
    order = np.argsort(ended, axis=1, kind="stable")
    ends = np.maximum(np.take_along_axis(ended, order, axis=1), sent[:, None])
    spans = np.diff(ends, axis=1, prepend=sent[:, None])
    owing = np.arange(ended.shape[1], 0, -1)
    found = np.empty_like(ended)
    np.put_along_axis(found, order, np.cumsum(spans / owing, axis=1), axis=1)
    return found
