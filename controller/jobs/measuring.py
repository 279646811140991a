# SPDX-License-Identifier: Apache-2.0
"""Puts together what workers measured of a job's servers in each round."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from controller.jobs.members import Membership
from controller.planning.balancing.balancer import Round, ServerRound
from protocol import jobs_pb2

__all__ = ["Rounds"]

_MOST_SECONDS = 1e9
# Workers are a round apart; the others are of workers that report what is not.
_MOST_ROUNDS = 16


class Rounds:
    """The rounds that not all workers have reported yet."""

    def __init__(self) -> None:
        self._reports: dict[int, dict[Membership, jobs_pb2.Measured]] = {}

    def take(
        self,
        place: Membership,
        measured: jobs_pb2.Measured,
        workers: Collection[Membership],
        servers: tuple[int, ...],
    ) -> Round | None:
        """Takes a worker's report; returns the round once all workers have reported it.

        servers: those of the plan by rank, numbered as in the job. Raises ValueError for a report
        that does not have an entry for each.
        """
        for column in (measured.sums, measured.waited, measured.ended):
            if len(column) != len(servers):
                raise ValueError(f"a round of {len(column)} servers, the plan has {len(servers)}")
        times = (measured.seconds, *measured.waited, *measured.ended)
        if not all(0 <= one < _MOST_SECONDS for one in times):  # NaN is none of them
            raise ValueError("a round that took less than no time, or years")
        if len(self._reports) > _MOST_ROUNDS:
            del self._reports[min(self._reports)]
        reports = self._reports.setdefault(measured.round, {})
        reports[place] = measured
        if not all(worker in reports for worker in workers):
            return None
        # Older rounds lack reports of workers that have left.
        self._reports = {n: r for n, r in self._reports.items() if n > measured.round}
        found = list(reports.values())
        sums = np.array([one.sums for one in found], np.int64)
        waited = np.array([one.waited for one in found])
        ended = np.array([one.ended for one in found])
        return Round(
            measured.round,
            float(np.mean([one.seconds for one in found])),
            tuple(
                ServerRound(
                    server,
                    int(sums[:, rank].max()),
                    float(waited[:, rank].sum() / max(1, sums[:, rank].sum())),
                    float(ended[:, rank].max()),
                )
                for rank, server in enumerate(servers)
            ),
        )

    def drop(self) -> None:
        """Forgets what was reported in an earlier plan epoch."""
        self._reports.clear()
