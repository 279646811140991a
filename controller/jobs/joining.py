# SPDX-License-Identifier: Apache-2.0
"""State machine of one attempt to let workers join a running job.

All workers stop at the end of the same round, and one of them transfers its state to those that
join. Events go in, each member's instruction comes out; there is no clock, socket or lock.

A worker reports how many rounds it has begun, and begins no other until it gets the maximum of all
reports. When all have completed that many rounds nothing is in flight: all workers have the same
results, and so has a joining worker with the state of another. A change of plan epoch with more
members follows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from controller.jobs.members import Membership
from protocol import jobs_pb2
from protocol.state import HASH_BYTES, MOST_STATE_BYTES, PAGE_BYTES

__all__ = ["Join"]


class Join:
    """An attempt of ``joiners`` to join ``workers``, of which ``donors`` can give state.

    epoch: the plan epoch.
    number: unique within the plan epoch; answers repeat it.
    failure: why it failed; "" unless it did.
    refused: joiners that cannot join, and why.
    donor: the worker whose state was transferred, once it is settled.
    """

    def __init__(
        self,
        epoch: int,
        number: int,
        workers: Collection[Membership],
        donors: Iterable[Membership],
        joiners: Collection[Membership],
    ) -> None:
        self.epoch = epoch
        self.number = number
        self.joiners = set(joiners)
        self.failure = ""
        self.refused: dict[Membership, str] = {}
        self.donor: Membership | None = None  # whose state it is
        self._workers = set(workers)
        self._donors = sorted(donors, key=lambda place: place.rank)
        self._begun: dict[Membership, int] = {}
        self._until: int | None = None
        self._reached: set[Membership] = set()
        # Each donor's state has a number of its own.
        self._donation = number
        self._page: int | None = None  # requested page
        self._given = False  # it has arrived
        self._last = False  # it is the last one
        self._taking: set[Membership] = set()  # joiners that have not taken it
        self._whole = (0, b"")  # size and hash of the state, repeated in all pages
        self._unable: list[str] = []
        self._instructions: dict[Membership, jobs_pb2.Instruction] = {}
        self._tell(self._workers, boundary=jobs_pb2.Boundary(number=number))
        self._advance()

    # --- instructions ---

    def instruction(self, place: Membership) -> jobs_pb2.Instruction | None:
        """Returns a member's instruction, the same object until it is replaced; None if none."""
        return self._instructions.get(place)

    @property
    def settled(self) -> bool:
        """True if all joiners have the whole state."""
        return self._given and self._last and not self._taking and not self.failure

    @property
    def taking(self) -> frozenset[Membership]:
        """Joiners that have yet to take the current page."""
        return frozenset(self._taking)

    @property
    def owing(self) -> dict[Membership, str]:
        """Members that the attempt waits for, and what they have to do."""
        if self._until is None:
            return dict.fromkeys(self._workers - self._begun.keys(), "to say where it is")
        late = self._workers - self._reached
        if late:
            return dict.fromkeys(late, f"to complete round {self._until}")
        if self._taking:
            return dict.fromkeys(self._taking, f"to take page {self._page} of the state")
        return {} if self._given else dict.fromkeys(self._donors[:1], "to give its state")

    # --- answers; those of another attempt or phase are outdated and ignored ---

    def begun(self, place: Membership, answer: jobs_pb2.Begun) -> None:
        """Handles a worker's report of the rounds it has begun; it begins no other."""
        asked = place in self._workers and place not in self._begun and self._until is None
        if asked and answer.number == self.number:
            self._begun[place] = answer.calls
            self._advance()

    def reached(self, place: Membership, answer: jobs_pb2.Reached) -> None:
        """Handles a worker's report that it has completed the rounds up to the boundary."""
        asked = place in self._workers and self._until is not None
        if asked and answer.number == self.number and place not in self._reached:
            self._reached.add(place)
            self._advance()

    def donated(self, place: Membership, answer: jobs_pb2.Donated) -> None:
        """Handles a page of the donor's state, or its failure: then the next donor is asked."""
        if self._page is None or self._given or self._donors[:1] != [place]:
            return
        if answer.number != self._donation:
            return
        if not answer.unable and answer.page.page != self._page:  # a repeated earlier page
            return
        wrong = answer.unable or self._wrong(answer.page)
        if wrong:
            self._unable.append(f"{place.role} {place.rank}: {wrong}")
            self._next_donor()
            return
        self.donor = place
        self._given, self._last = True, (self._page + 1) * PAGE_BYTES >= answer.page.size
        self._taking = set(self.joiners)
        restore = jobs_pb2.Restore(number=self._donation, page=answer.page)
        self._tell(self._taking, restore=restore)

    def restored(self, place: Membership, answer: jobs_pb2.Restored) -> None:
        """Handles a joiner's report that it has taken a page, or cannot."""
        if place not in self._taking or answer.number != self._donation:
            return
        if answer.unable:
            self.refused[place] = f"could not take the state: {answer.unable}"
            self._forget(place)
        elif answer.page == self._page:
            self._taking.discard(place)
        self._turn_page()

    def left(self, place: Membership) -> None:
        """Removes a worker that has left, or a joiner that has given up."""
        if place in self.joiners:
            self._forget(place)
            self._turn_page()
            return
        self._workers.discard(place)
        self._begun.pop(place, None)
        self._reached.discard(place)
        self._instructions.pop(place, None)
        giving = self._page is not None and not (self._given and self._last)
        if giving and self._donors[:1] == [place]:
            self._next_donor()
        elif place in self._donors:
            self._donors.remove(place)
        self._advance()

    # --- inside ---

    def _advance(self) -> None:
        if self.failure or self._page is not None:
            return
        if not self._workers:
            self.failure = "no member is left in the job"
        elif self._until is None:
            if self._workers <= self._begun.keys():
                self._until = max(self._begun.values())
                until = jobs_pb2.Boundary(number=self.number, until=self._until)
                self._tell(self._workers, boundary=until)
        elif self._workers <= self._reached:
            self._ask(0)

    def _ask(self, page: int) -> None:
        """Asks the donor for a page."""
        if not self._donors:
            why = "; ".join(self._unable) or "those who could have left"
            self.failure = f"no member supplies the state of the job: {why}"
            return
        self._page, self._given = page, False
        donate = jobs_pb2.Donate(number=self._donation, page=page)
        self._tell(self._donors[:1], donate=donate)

    def _next_donor(self) -> None:
        place = self._donors.pop(0)
        if place in self._workers:
            until = jobs_pb2.Boundary(number=self.number, until=self._until)
            self._tell([place], boundary=until)
        self._donation += 1
        self._taking = set()
        self._ask(0)

    def _turn_page(self) -> None:
        """Requests the next page when all joiners have taken this one."""
        if not self.joiners:
            self.failure = self.failure or "those who wanted to join do not any more"
        elif self._page is not None and self._given and not self._taking and not self._last:
            self._ask(self._page + 1)

    def _forget(self, place: Membership) -> None:
        self.joiners.discard(place)
        self._taking.discard(place)
        self._instructions.pop(place, None)

    def _wrong(self, page: jobs_pb2.Page) -> str:
        """Describes the error of a page; "" if it is valid."""
        whole = page.size, page.sha256
        if not 0 < page.size <= MOST_STATE_BYTES or len(page.sha256) != HASH_BYTES:
            return f"its state has {page.size} B, allowed are 1 to {MOST_STATE_BYTES}"
        if page.page == 0:
            self._whole = whole
        expected = min(PAGE_BYTES, page.size - page.page * PAGE_BYTES)
        if whole != self._whole or len(page.data) != expected:
            return f"page {page.page} of its state has {len(page.data)} B, not {expected}"
        return ""

    def _tell(self, places: Iterable[Membership], **what: object) -> None:
        told = jobs_pb2.Instruction(epoch=self.epoch, **what)  # type: ignore[arg-type]
        self._instructions.update(dict.fromkeys(places, told))
