# SPDX-License-Identifier: Apache-2.0
"""What a job's switches and links count while it trains, and whether that says anything of the job.

Neither tells jobs apart: with others alongside, the counts are of all.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controller.trees import Tree
from protocol.outcomes import Outcome
from testbed.jobs.place import Place
from testbed.nodes.serverhost import JobError
from testbed.plans.expected import Direction, Load
from testbed.records import links, outcomes

Message = dict[str, Any]


class Tally:
    """Of a job with these trees, from ``begin`` to ``end``.

    alongside: names of jobs that trained meanwhile; shared_with: of those on the same switches.
    carried: rows of ``testbed.records.links``. wiped: switches that have lost what they had
    counted.
    """

    def __init__(self, name: str, trees: Sequence[Tree], place: Place) -> None:
        self.name = name
        self.alongside: set[str] = set()
        self.shared_with: set[str] = set()
        self.carried: list[Message] = []
        self.wiped: list[str] = []
        self._trees = trees
        self._place = place
        self._training = False
        self._began = 0.0
        self._counted: outcomes.Counts = {}
        self._before: tuple[dict[str, int], outcomes.Counts, links.Measured]

    async def begin(self, others: Iterable[Tally]) -> None:
        """It is about to train; raises ``ProcessError`` if a switch is stuck."""
        # First: whoever starts or ends between here and the counting counts as being alongside.
        self._training, self._began = True, time.monotonic()
        mine = outcomes.switches_of(self._trees)
        for other in others:
            if other is self or not other._training:
                continue
            self.alongside.add(other.name)
            other.alongside.add(self.name)
            if mine & outcomes.switches_of(other._trees):
                self.shared_with.add(other.name)
                other.shared_with.add(self.name)
        switches = self._place.nodes.switches
        wipes, counts = self._wipes(), await self._count(strict=True)
        self._before = wipes, counts, await links.measure(self._place.network, switches)

    async def end(self, expected: Mapping[Direction, Load] | None) -> None:
        """It has trained. expected: what it alone should have put on links; None: who knows."""
        wipes, counts, carried = self._before
        mine = outcomes.switches_of(self._trees)
        for visitor in self._place.others.since(self._began):
            self.alongside.add(visitor.name)
            if mine & visitor.switches:
                self.shared_with.add(visitor.name)
        self._counted = outcomes.since(counts, await self._count(strict=False))
        now = self._wipes()
        self.wiped = [n for n in now if now[n] != wipes[n] or n not in self._counted]
        network = self._place.network
        measured = await links.measure(network, self._place.nodes.switches)
        # What other jobs should have sent meanwhile, or after a fault, nobody can say either.
        wanted = None if self.alongside or self.wiped else expected
        carried_since = links.since(network.addressing, carried, measured)
        self.carried = links.rows(network.addressing, carried_since, wanted)
        self._training = False

    def over(self) -> None:
        """The job is over, whether or not it came to its end."""
        self._training = False

    @property
    def sent_again(self) -> int | None:
        """Packets that its switches sent again; None if nobody can tell."""
        return None if self.wiped else outcomes.sent_again(self._trees, self._counted)

    def check(self, received: int) -> None:
        """``JobError`` unless the switches have made as many sums as each worker received."""
        made = outcomes.sums_made(self._trees, self._counted)
        # With other jobs on the same switches they show more.
        if made < received or (made > received and not self.shared_with):
            raise JobError(
                f"the switches made {made:,} sums and the workers received {received:,}: some"
                " came from elsewhere or were lost"
            )

    def _wipes(self) -> dict[str, int]:
        """How often each of its switches has lost what it had counted."""
        switches = self._place.nodes.switches
        return {name: switches[name].wiped for name in sorted(outcomes.switches_of(self._trees))}

    async def _count(self, *, strict: bool) -> dict[str, Counter[Outcome]]:
        """What its switches have counted so far.

        strict: ``ProcessError`` if one is stuck, else those of the others.
        """
        switches = self._place.nodes.switches
        chosen = [switches[name] for name in sorted(outcomes.switches_of(self._trees))]
        serving = [switch for switch in chosen if switch.serving]
        counts, silent = await outcomes.read(serving, self._place.dataplane)
        if silent and strict:
            raise silent[0]
        return counts
