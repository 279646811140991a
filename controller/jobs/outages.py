# SPDX-License-Identifier: Apache-2.0
"""Switches, links and server processes that fail and come back: what whoever watches them says, and
what becomes of jobs then."""

from __future__ import annotations

from collections.abc import Mapping

from controller.jobs.departures import Departures
from controller.jobs.epochs import Epochs
from controller.jobs.members import Role
from controller.jobs.roster import Roster

__all__ = ["Outages"]


class Outages:
    """Of a fabric with jobs. Every method may be called from any thread."""

    def __init__(self, roster: Roster, epochs: Epochs, departures: Departures) -> None:
        self._roster = roster
        self._epochs = epochs
        self._departures = departures
        self._fabric = epochs.deployment.fabric

    def impair(self, links: Mapping[frozenset[str], Mapping[str, float]]) -> None:
        """See Fabric.impair."""
        with self._roster.busy():
            self._fabric.impair(links)

    def died(self, name: str, how: str, when: float) -> None:
        """The process of a switch or server had ended at ``when`` (another may be there by now)."""
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
        """A switch cannot be reached. Jobs through it go on until members get no answer either."""
        with self._roster.busy():
            self._fabric.down.add(switch)

    def regained(self, switch: str) -> None:
        """A switch can be reached and has its program, see ``Fabric.restore``. SwitchError."""
        with self._roster.busy():
            self._epochs.restore_switch(switch, self._roster.jobs)

    def intact(self, switch: str, seconds: float) -> bool:
        """Whether a switch has what running jobs and routes need; asks it. SwitchError."""
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
