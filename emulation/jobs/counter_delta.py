# SPDX-License-Identifier: Apache-2.0
"""Measures what switches and links count while a job trains.

Their counters do not distinguish jobs: while several jobs train, the counts cover all of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from controller.p4rt.dataplane import DataPlane
from controller.planning.tree_planner import Tree
from emulation.jobs.external_jobs import ExternalJobs
from emulation.nodes import counters, link_counters
from emulation.nodes.process_supervisor import ProcessSupervisor
from observability import links, outcomes
from observability.messages.summary import Link
from planner.link_loads import Direction, Load
from protocol.outcomes import Outcome


class CounterDeltas:
    """Creates the counter deltas of the jobs on a testbed and knows which of them overlap.

    external: jobs that were not submitted. training: deltas of the jobs that train now.
    """

    def __init__(
        self, nodes: ProcessSupervisor, dataplane: DataPlane, external: ExternalJobs
    ) -> None:
        self.nodes = nodes
        self.dataplane = dataplane
        self.external = external
        self.training: list[CounterDelta] = []

    def of(self, name: str, trees: Sequence[Tree]) -> CounterDelta:
        """Returns the delta of a job with these trees."""
        return CounterDelta(name, trees, self)


class CounterDelta:
    """Increase of the counters of a job's switches and links from ``begin`` to ``end``.

    alongside: names of jobs that trained at the same time.
    shared_with: names of those that also used the same switches.
    carried: rows of ``observability.links``.
    counts: increase of the outcome counters, by switch; None if some were lost.
    wiped: switches that lost their counts meanwhile.
    overrun: frames that switches did not fetch from their sockets in time.
    """

    def __init__(self, name: str, trees: Sequence[Tree], among: CounterDeltas) -> None:
        self.name = name
        self.alongside: set[str] = set()
        self.shared_with: set[str] = set()
        self.carried: list[Link] = []
        self.counts: outcomes.Counts | None = None
        self.wiped: list[str] = []
        self.overrun = 0
        self._trees = trees
        self._among = among
        self._nodes = among.nodes
        self._began = 0.0
        self._before: tuple[dict[str, int], outcomes.Counts, links.Measured]

    async def begin(self) -> None:
        """Reads the counters before training; raises ``ProcessError`` if a switch is stuck."""
        # Before reading: a job that starts or ends during the read trained alongside.
        self._began = time.monotonic()
        mine = outcomes.switches_of(self._trees)
        for other in self._among.training:
            self.alongside.add(other.name)
            other.alongside.add(self.name)
            if mine & outcomes.switches_of(other._trees):
                self.shared_with.add(other.name)
                other.shared_with.add(self.name)
        self._among.training.append(self)
        wipes, counts = self._wipes(), await self._count(strict=True)
        measured = await link_counters.measure(self._nodes.network, self._nodes.switches)
        self._before = wipes, counts, measured

    async def end(self, expected: Mapping[Direction, Load] | None) -> None:
        """Reads the counters after training.

        expected: load that the job alone should have put on links; None if it is not known.
        """
        wipes, counts, carried = self._before
        mine = outcomes.switches_of(self._trees)
        for visitor in self._among.external.since(self._began):
            self.alongside.add(visitor.name)
            if mine & visitor.switches:
                self.shared_with.add(visitor.name)
        counted = outcomes.since(counts, await self._count(strict=False))
        now = self._wipes()
        self.wiped = [n for n in now if now[n] != wipes[n] or n not in counted]
        self.counts = None if self.wiped else counted
        network = self._nodes.network
        measured = await link_counters.measure(network, self._nodes.switches)
        # The load of other jobs, or after a fault, cannot be predicted either.
        wanted = None if self.alongside or self.wiped else expected
        carried_since = links.since(network.addressing, carried, measured)
        self.carried = links.rows(network.addressing, carried_since, wanted)
        grown = (now - carried.overrun.get(name, 0) for name, now in measured.overrun.items())
        self.overrun = sum(max(0, one) for one in grown)
        self.over()

    def over(self) -> None:
        """Removes the job from those that train, however it ended."""
        if self in self._among.training:
            self._among.training.remove(self)

    def _wipes(self) -> dict[str, int]:
        """Returns how often each of its switches has lost its counts."""
        switches = self._nodes.switches
        return {name: switches[name].wiped for name in sorted(outcomes.switches_of(self._trees))}

    async def _count(self, *, strict: bool) -> dict[str, Counter[Outcome]]:
        """Reads the counters of its switches.

        strict: raises ``ProcessError`` if one is stuck; otherwise leaves that one out.
        """
        switches = self._nodes.switches
        chosen = [switches[name] for name in sorted(outcomes.switches_of(self._trees))]
        serving = [switch for switch in chosen if switch.serving]
        counts, silent = await counters.read(serving, self._among.dataplane)
        if silent and strict:
            raise silent[0]
        return counts
