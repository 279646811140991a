# SPDX-License-Identifier: Apache-2.0
"""Handles reports of switches, links and server processes that fail or recover."""

from __future__ import annotations

from collections.abc import Mapping

from controller.jobs.departures import Departures
from controller.jobs.epochs import Epochs
from controller.jobs.members import Role
from controller.jobs.roster import Roster

__all__ = ["Outages"]


class Outages:
    """Outages of a fabric and their effect on jobs. Methods may be called from any thread."""

    def __init__(self, roster: Roster, epochs: Epochs, departures: Departures) -> None:
        self._roster = roster
        self._epochs = epochs
        self._departures = departures
        self._fabric = epochs.deployment.fabric

    def impair(self, links: Mapping[frozenset[str], Mapping[str, float]]) -> None:
        """Handles ``Fabric.impair``."""
        with self._roster.busy():
            self._fabric.impair(links)

    def died(self, name: str, how: str, when: float) -> None:
        """Handles the end of a switch's or server's process at ``when``.

        Another process may have replaced it already.
        """
        with self._roster.busy():
            if name in self._fabric.connections:
                self._fabric.down.add(name)
                self._epochs.avoid({name}, self._roster.jobs, how)
                return
            for job in list(self._roster.jobs):
                for place, member in list(job.members.items()):
                    of_it = place.role is Role.SERVER and job.servers[place.rank] == name
                    if of_it and member.since <= when:
                        self._departures.gone(job, place, how)

    def lost(self, switch: str) -> None:
        """Marks a switch as down. Its jobs continue until members get no answer either."""
        with self._roster.busy():
            self._fabric.down.add(switch)

    def regained(self, switch: str) -> None:
        """Restores a switch that is reachable and has its program (``Fabric.restore``).

        Raises SwitchError.
        """
        with self._roster.busy():
            self._epochs.restore_switch(switch, self._roster.jobs)

    def intact(self, switch: str, seconds: float) -> bool:
        """Queries a switch: whether it has the entries of running jobs and of routes.

        Raises SwitchError.
        """
        with self._roster.changed:
            before = self._fabric.writes[switch]
            nodes = [
                entity
                for job in self._roster.jobs
                if job.installation is not None
                for entity in job.installation.nodes.get(switch, ())
            ]
        lacks = self._fabric.lacks(switch, nodes, seconds)
        with self._roster.changed:
            return not lacks or before != self._fabric.writes[switch]
