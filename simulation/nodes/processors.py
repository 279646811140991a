# SPDX-License-Identifier: Apache-2.0
"""The processor of a server in virtual time, and which datagrams its program gets together.

It handles datagrams one by one, so the program could get each at a time of its own, and would wake
up for each. But most contributions only add to a sum that lacks others still: nothing shows that
they have arrived before another datagram does. So the program gets them with the next one whose
effects can be seen, at the time of that, unless something else happens at the host before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

import numpy as np
import numpy.typing as npt

from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES
from protocol.priorities import STREAM_BYTE
from simulation.links.timeline import Timeline
from simulation.links.trains import NEVER, Lengths, side_by_side
from simulation.nodes.costs import Core, ProcessingCost, UrgentFirstCore
from simulation.nodes.frames import Datagrams

Shows = Callable[[Datagrams], npt.NDArray[np.bool_] | None]
"""Returns (n,), whether each datagram, handled in this order, has an effect that can be seen at
once; None: all have."""

_MOST = 64  # datagrams that are looked at together


class _Item:
    """A datagram at a processor. visible: it has to be handed over in time; None: not known."""

    __slots__ = ("found", "visible")

    def __init__(self, found: Datagrams) -> None:
        self.found = found
        self.visible: bool | None = None


class Processor(ABC):
    """Handles datagrams in the order of its kind.

    at: when (ps) the program gets the next ones; NEVER: none are here.
    open: it may get more of them together, once more is known.
    """

    def __init__(self, shows: Shows | None) -> None:
        self.at = NEVER
        self.open = True
        self._shows = shows
        self._count = 0  # datagrams that the program gets at `at`

    def add(self, now: int, found: Datagrams) -> None:
        """Queues datagrams that arrive."""
        rows = range(len(found.lengths))
        payloads = np.maximum(found.lengths - (OVERHEAD + HEADER_BYTES), 0)
        self._add(now, payloads, [_Item(found.select(slice(row, row + 1))) for row in rows])

    @abstractmethod
    def _add(self, now: int, payloads: Lengths, items: list[_Item]) -> None:
        """Queues datagrams with payloads of these bytes."""

    def begin(self, now: int) -> None:
        """Begins with the first of all that arrived at one time, if it is idle.

        However these were divided, so that times do not depend on rounds of the engine. What takes
        no time has been handled at once.
        """
        self._begin(now)
        if self.at == NEVER and self._ended(now):
            self.at, self._count = now, 1

    def _ended(self, now: int) -> bool:
        return any(end <= now for end, _ in islice(self._coming(), 1))

    @abstractmethod
    def _begin(self, now: int) -> None:
        """Begins with the next datagram, if it is idle."""

    @abstractmethod
    def _coming(self) -> Iterable[tuple[int, _Item]]:
        """Iterates over datagrams and when they will have been handled, if no others arrive."""

    @abstractmethod
    def _take(self, count: int) -> list[_Item]:
        """Removes the next datagrams, which have been handled."""

    def decide(self, limit: int) -> None:
        """Chooses what the program gets next; at its host nothing else happens before the limit
        (ps) that it could see or that changes what is handled until then."""
        self.at, self._count, visible = NEVER, 0, False
        for end, item in self._coming():
            if self._count and (end >= limit or visible):
                break
            if item.visible is None:
                self._look()
            self.at, visible = end, item.visible is not False
            self._count += 1
        self.open = not visible

    def _look(self) -> None:
        """Finds out which of the next datagrams have to be handed over in time. Those of a stream
        are handled in order, so more urgent ones that arrive later change nothing."""
        items = [item for _, item in islice(self._coming(), _MOST)]
        found = None if self._shows is None else self._shows(_joined(items))
        shown = [True] * len(items) if found is None else found.tolist()
        for item, visible in zip(items, shown, strict=True):
            item.visible = visible

    def forget(self) -> None:
        """Looks at all datagrams again, as the program has changed otherwise than by them."""
        for _, item in self._coming():
            item.visible = None

    def take(self) -> Datagrams:
        """Returns what the program gets now, at `at`, all that is handled by then; `decide` what
        follows."""
        items = self._take(self._count)
        while self._ended(self.at):
            items += self._take(1)
        self.at, self.open = NEVER, True
        return _joined(items)


class FifoProcessor(Processor):
    """Handles datagrams in the order of arrival."""

    def __init__(self, core: Core, shows: Shows | None) -> None:
        super().__init__(shows)
        self._core = core
        self._queue: deque[tuple[int, _Item]] = deque()

    def _add(self, now: int, payloads: Lengths, items: list[_Item]) -> None:
        ends = self._core.ends(np.full(len(items), now, np.int64), payloads)
        self._queue.extend(zip(ends.tolist(), items, strict=True))

    def _begin(self, now: int) -> None:
        pass  # it has, when they arrived

    def _coming(self) -> Iterable[tuple[int, _Item]]:
        return self._queue

    def _take(self, count: int) -> list[_Item]:
        return [self._queue.popleft()[1] for _ in range(count)]


class UrgentFirstProcessor(Processor):
    """Handles the most urgent datagram first; what it has begun it finishes."""

    def __init__(self, cost: ProcessingCost, slowdown: Timeline, shows: Shows | None) -> None:
        super().__init__(shows)
        self._core: UrgentFirstCore[_Item] = UrgentFirstCore(cost, _stream_of, slowdown)
        self._begun: tuple[int, _Item] | None = None  # and when it will have been handled

    def _add(self, now: int, payloads: Lengths, items: list[_Item]) -> None:
        self._core.add(payloads, items)

    def _begin(self, now: int) -> None:
        begun = self._core.begin(now)
        if begun is not None:
            self._begun = now + begun[0], begun[1]

    def _coming(self) -> Iterator[tuple[int, _Item]]:
        if self._begun is None:
            return iter(())
        return chain((self._begun,), self._core.following(self._begun[0]))

    def _take(self, count: int) -> list[_Item]:
        items = []
        for _ in range(count):
            assert self._begun is not None
            end, item = self._begun
            items.append(item)
            self._begun = None
            self._core.end()
            self._begin(end)
        return items


def _joined(items: list[_Item]) -> Datagrams:
    """Joins datagrams; they count as having arrived with the last, on which results depend."""
    parts = [item.found for item in items]
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([one.lengths for one in parts])
    return Datagrams(side_by_side([one.frames for one in parts]), lengths, parts[-1].at)


def _stream_of(item: _Item) -> int:
    """Returns the stream of a datagram; 0 if it has none."""
    row = item.found.frames[0, OVERHEAD:]
    return int(row[STREAM_BYTE]) if len(row) > STREAM_BYTE else 0
