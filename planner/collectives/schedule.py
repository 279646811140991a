# SPDX-License-Identifier: Apache-2.0
"""Schedules of sums across racks: what the boxes of racks do, in which order, and a check of it.

A box is a server process that sums for the workers of its rack. A block of values has equal parts;
a box's program says what it does with them, in stages: it gathers its rack's sum of a part,
exchanges parts with other boxes, and broadcasts complete ones to its workers. Exactly one box
completes a part, and takes the optimizer's step for it, if there is one. Blocks overlap: while one
is in a late stage, later ones are in earlier stages (``in_order``), the same at all boxes. What is
sent in a stage is received in the next.

Where a switch sums for the boxes it has a program, too, the last one, and every box completes
every part: each has its rack's parameters, and takes the same step for the same sum.

``verify`` runs the programs of all boxes on sets of racks in place of values, as the verifier of
PHub's schedules does (branch hierarchical-sim of Luo-Liang/ps-lite).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from protocol.errors import Error

__all__ = [
    "HALVING_DOUBLING",
    "RING",
    "SWITCH",
    "Do",
    "Exchange",
    "Operation",
    "Program",
    "ScheduleError",
    "blocks_at_once",
    "in_order",
    "most_held",
    "verify",
]

_BLOCKS_AT_ONCE = 4  # of a program's length, so that boxes seldom wait for each other


class ScheduleError(Error, ValueError):
    """A schedule does not compute every sum exactly once; the text says where."""


class Do(Enum):
    """Operations of a box on a part."""

    GATHER = "gathers"  # the sum of its workers' values, from them
    SEND = "sends"
    ADD = "adds"  # what another box has sent, to what is there
    TAKE = "takes"  # the same in place of its own
    COMPLETE = "completes"  # nothing is added any more
    BROADCAST = "broadcasts"  # to its workers


class Operation(NamedTuple):
    """An operation. part: of a block. box: to which, or from which."""

    do: Do
    part: int
    box: int = -1


Program: TypeAlias = list[list[Operation]]
"""Operations of a box on a block, by stage. All boxes' have as many stages."""


@dataclass(frozen=True)
class Exchange:
    """An algorithm among boxes.

    name: in names and texts.
    parts: returns the parts of a block, for so many boxes.
    program: returns the program of a box, given its number and that of all.
    pairs: returns the parts that boxes send each other, by sender and receiver.
    switched: a switch sums for them, whose number is theirs.
    """

    name: str
    parts: Callable[[int], int]
    program: Callable[[int, int], Program]
    pairs: Callable[[int], dict[tuple[int, int], int]]
    switched: bool = False

    def programs(self, boxes: int) -> list[Program]:
        """Returns the programs of all boxes, then that of the switch, if they have one."""
        switches = 1 if self.switched and boxes > 1 else 0
        return [self.program(one, boxes) for one in range(boxes + switches)]

    def verify(self, boxes: int, blocks: int = 1) -> None:
        """Checks the programs (``verify``). Raises ScheduleError."""
        verify(self.programs(boxes), self.parts(boxes), blocks, switched=self.switched)


def _ring(box: int, boxes: int) -> Program:
    """Returns the program of a ring: each part is summed from box to box, then handed on."""
    last = boxes - 1
    after, before = (box + 1) % boxes, (box - 1) % boxes
    program: Program = []
    for stage in range(2 * last + 1):
        part = (box - stage) % boxes
        doing = []
        if stage <= last:
            doing.append(Operation(Do.GATHER, part))
        if stage:
            doing.append(Operation(Do.ADD if stage <= last else Do.TAKE, part, before))
        if stage == last:
            doing.append(Operation(Do.COMPLETE, part))
        if stage < 2 * last:
            doing.append(Operation(Do.SEND, part, after))
        if stage >= last:
            doing.append(Operation(Do.BROADCAST, part))
        program.append(doing)
    return program


def _ring_pairs(boxes: int) -> dict[tuple[int, int], int]:
    if boxes == 1:
        return {}
    return {(box, (box + 1) % boxes): 2 * (boxes - 1) for box in range(boxes)}


def _halving_doubling(box: int, boxes: int) -> Program:
    """Returns the program of recursive halving and doubling.

    With a fold: the second box of each of the first pairs sends all to the first, and gets all sums
    in the last stage.
    """
    places, extra = _places(boxes)
    rounds = places.bit_length() - 1
    folds = 1 if extra else 0
    program: Program = [[] for _ in range(2 * rounds + 1 + 2 * folds)]
    everything = range(places)
    program[0] = [Operation(Do.GATHER, part) for part in everything]
    folded = box < 2 * extra
    if folded and box % 2:
        program[0] += [Operation(Do.SEND, part, box - 1) for part in everything]
        program[-1] += [Operation(Do.TAKE, part, box - 1) for part in everything]
        program[-1] += [Operation(Do.BROADCAST, part) for part in everything]
        return program
    if folded:
        program[1] += [Operation(Do.ADD, part, box + 1) for part in everything]
    place = box // 2 if folded else box - extra
    low, high, stage = 0, places, folds
    exchanged = []
    for bit in range(rounds):
        other = place ^ 1 << bit
        peer = 2 * other if other < extra else other + extra
        middle = (low + high) // 2
        upper = place >> bit & 1
        kept, given = range(low, middle), range(middle, high)
        if upper:
            kept, given = given, kept
        low, high = kept.start, kept.stop
        program[stage] += [Operation(Do.SEND, part, peer) for part in given]
        program[stage + 1] += [Operation(Do.ADD, part, peer) for part in kept]
        exchanged.append((peer, kept, given))
        stage += 1
    program[stage].append(Operation(Do.COMPLETE, low))
    mine = range(low, high)
    for peer, kept, given in reversed(exchanged):
        program[stage] += [Operation(Do.SEND, part, peer) for part in kept]
        program[stage] += [Operation(Do.BROADCAST, part) for part in mine]
        program[stage + 1] += [Operation(Do.TAKE, part, peer) for part in given]
        mine = given
        stage += 1
    if folded:
        program[stage] += [Operation(Do.SEND, part, box + 1) for part in everything]
    program[stage] += [Operation(Do.BROADCAST, part) for part in mine]
    return program


def _halving_doubling_pairs(boxes: int) -> dict[tuple[int, int], int]:
    places, extra = _places(boxes)
    members = [2 * place if place < extra else place + extra for place in range(places)]
    found = {}
    for bit in range(places.bit_length() - 1):
        for place, member in enumerate(members):
            # A half, a quarter.. there; what is kept of it comes back complete.
            found[member, members[place ^ 1 << bit]] = 2 * (places >> (bit + 1))
    for fold in range(extra):
        found[2 * fold + 1, 2 * fold] = found[2 * fold, 2 * fold + 1] = places
    return found


def _places(boxes: int) -> tuple[int, int]:
    """Returns the largest power of two, and the number of boxes beyond it."""
    places = 1 << (boxes.bit_length() - 1)
    return places, boxes - places


def _switch(box: int, boxes: int) -> Program:
    """Returns the program of a box whose sums a switch adds up, or of the switch, the last."""
    if boxes == 1:
        return [[Operation(do, 0) for do in (Do.GATHER, Do.COMPLETE, Do.BROADCAST)]]
    if box == boxes:
        come = [Operation(Do.ADD if one else Do.TAKE, 0, one) for one in range(boxes)]
        return [[], [*come, *(Operation(Do.SEND, 0, one) for one in range(boxes))], []]
    return [
        [Operation(Do.GATHER, 0), Operation(Do.SEND, 0, boxes)],
        [],
        [Operation(Do.TAKE, 0, boxes), Operation(Do.COMPLETE, 0), Operation(Do.BROADCAST, 0)],
    ]


def _switch_pairs(boxes: int) -> dict[tuple[int, int], int]:
    if boxes == 1:
        return {}
    return {pair: 1 for box in range(boxes) for pair in ((box, boxes), (boxes, box))}


RING = Exchange("ring", lambda boxes: boxes, _ring, _ring_pairs)
HALVING_DOUBLING = Exchange(
    "halving-doubling",
    lambda boxes: _places(boxes)[0],
    _halving_doubling,
    _halving_doubling_pairs,
)
SWITCH = Exchange("switch", lambda boxes: 1, _switch, _switch_pairs, switched=True)


def _interval(program: Program) -> int:
    """Returns the stages after which the next block begins."""
    return max(1, len(program) // _BLOCKS_AT_ONCE)


def blocks_at_once(program: Program) -> int:
    """Returns how many blocks are in some stage at once."""
    return -(-len(program) // _interval(program))


def most_held(program: Program) -> int:
    """Returns the most parts that a box has gathered and not broadcast yet."""
    most = now = 0
    for _, operation in in_order(program, 2 * blocks_at_once(program)):
        now += (operation.do is Do.GATHER) - (operation.do is Do.BROADCAST)
        most = max(most, now)
    return most


def in_order(program: Program, blocks: int) -> Iterator[tuple[int, Operation]]:
    """Yields each block's operations in the order in which a box executes them."""
    stages = len(program)
    step = _interval(program)
    for slot in range((blocks - 1) * step + stages):
        first = max(0, -(-(slot - stages + 1) // step))
        for block in range(first, min(blocks - 1, slot // step) + 1):
            for operation in program[slot - block * step]:
                yield block, operation


@dataclass
class _Part:
    """Sum of a part that a box holds. racks: those whose values are in it, as bits."""

    racks: int = 0
    complete: bool = False
    gathered: bool = False
    broadcast: bool = False


def verify(programs: Sequence[Program], parts: int, blocks: int, *, switched: bool = False) -> None:
    """Checks that every rack's values are in every sum exactly once, that exactly one box completes
    every sum, and that every box broadcasts it once, complete.

    Args:
        programs: Of boxes, then of their switch, if there is one.
        switched: Every box completes every sum, once, and the switch completes none.

    Raises:
        ScheduleError: It is not so, or boxes wait for each other for ever.
    """
    boxes = len(programs) - 1 if switched and len(programs) > 1 else len(programs)
    everyone = (1 << boxes) - 1
    held: list[dict[tuple[int, int], _Part]] = [defaultdict(_Part) for _ in programs]
    sent: dict[tuple[int, int], deque[tuple[tuple[int, int], int, bool]]] = defaultdict(deque)
    completed: set[tuple[int, tuple[int, int]]] = set()  # by box if all do

    def fail(box: int, where: tuple[int, int], text: str) -> ScheduleError:
        return ScheduleError(f"box {box}, block {where[0]}, part {where[1]}: {text}")

    def execute(box: int, block: int, operation: Operation) -> None:
        do, number, peer = operation
        where = block, number
        part = held[box][where]
        if do is Do.GATHER:
            if part.gathered or part.racks:
                raise fail(box, where, "the rack's values are added twice")
            part.racks, part.gathered = 1 << box, True
        elif do is Do.SEND:
            sent[box, peer].append((where, part.racks, part.complete))
        elif do is Do.COMPLETE:
            by = box if switched else 0
            if part.racks != everyone or (by, where) in completed:
                raise fail(box, where, "is not complete, or was completed before")
            part.complete = True
            completed.add((by, where))
        elif do is Do.BROADCAST:
            if not part.complete or part.broadcast:
                raise fail(box, where, "is broadcast incomplete, or twice")
            part.broadcast = True
        else:
            came, racks, complete = sent[peer, box].popleft()
            if came != where:
                raise fail(box, where, f"block {came[0]}, part {came[1]} comes from box {peer}")
            if do is Do.TAKE:
                part.racks, part.complete = racks, complete
            elif not part.racks:
                raise fail(box, where, f"values from box {peer} are added to none")
            elif racks & part.racks or complete or part.complete:
                raise fail(box, where, f"values from box {peer} are added twice")
            else:
                part.racks |= racks

    _execute_all([deque(in_order(one, blocks)) for one in programs], sent, execute)
    every = {(block, part) for block in range(blocks) for part in range(parts)}
    for box, found in enumerate(held[:boxes]):
        for where in sorted(every):
            if not found[where].broadcast:
                raise fail(box, where, "is never broadcast")
    if unread := [pair for pair, waiting in sent.items() if waiting]:
        raise ScheduleError(f"box {unread[0][1]} does not read all that box {unread[0][0]} sends")


def _execute_all(
    waiting: Sequence[deque[tuple[int, Operation]]],
    sent: Mapping[tuple[int, int], Sized],
    execute: Callable[[int, int, Operation], None],
) -> None:
    """Executes the operations of all boxes, each as soon as what it needs has been sent."""
    moved = True
    while moved:
        moved = False
        for box, left in enumerate(waiting):
            while left:
                block, operation = left[0]
                receives = operation.do in (Do.ADD, Do.TAKE)
                if receives and not sent[operation.box, box]:
                    break
                execute(box, block, operation)
                left.popleft()
                moved = True
    for box, left in enumerate(waiting):
        if left:
            block, operation = left[0]
            raise ScheduleError(
                f"box {box}, block {block}, part {operation.part}: waits for ever for box"
                f" {operation.box}"
            )
