# SPDX-License-Identifier: Apache-2.0
"""One program, its entries and its packets, on this target and on BMv2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import grpc
from p4.v1 import p4runtime_pb2 as p4rt

from controller.connection import Connection, SwitchError
from tests.packet.differential import Answer, Case, Embedded, Output, by_port, differences, embedded
from tests.packet.differential_bmv2 import Bmv2

# Why a difference is not counted as one of this target's: rules, by name.
STALE = "BMv2 reads what an earlier packet left in a header that is not valid"
TIME = "depends on the time or on chance"
BMV2_ENDS = "BMv2 ends"
# Microseconds since the start at which a packet is tried again, for TIME.
_LATER_US = 1_234_567_891
# Seconds that BMv2 has for a packet that this target sends: at first, and when it has not come.
_HURRIED, _PATIENT = 0.3, 2.0


@dataclass
class Result:
    """Of one program. refused_here, refused_there: why a target does not take it; findings:
    differences that no rule explains, each with the case that shows it; filtered: by rule."""

    name: str
    refused_here: str = ""
    refused_there: str = ""
    packets: int = 0
    updates: int = 0
    findings: list[tuple[str, Case]] = field(default_factory=list)
    filtered: Counter[str] = field(default_factory=Counter)


class Ended(Exception):  # noqa: N818
    """BMv2 is not there any more; the message is the end of its log."""


def compare(case: Case) -> Result:
    """Runs a case on both and looks at every packet that is not the same."""
    result = Result(case.name)
    empty = replace(case, updates=())
    try:
        Embedded(empty).close()
    except SwitchError as error:
        result.refused_here = str(error)
    try:
        there = _accepted(empty, case.updates)
    except SwitchError as error:
        result.refused_there = str(error)
    except Ended as error:
        result.refused_there = f"{BMV2_ENDS}: {error}"
    if result.refused_here or result.refused_there:
        return result
    here = _accepted_here(empty, case.updates)
    for update, ours, theirs in zip(case.updates, here, there, strict=True):
        if bool(ours) != bool(theirs):
            words = f"a write is refused {'here' if ours else 'by BMv2'}: {ours or theirs}"
            result.findings.append((words, replace(case, updates=(update,), arrivals=())))
    both = [
        one for one, *refusals in zip(case.updates, here, there, strict=True) if not any(refusals)
    ]
    case = replace(case, updates=both)
    result.updates, result.packets = len(both), len(case.arrivals)
    _compare_packets(case, result)
    return result


def _accepted_here(case: Case, updates: Sequence[p4rt.Update]) -> list[str]:
    target = Embedded(case)
    try:
        return refusals(target.connection, updates)
    finally:
        target.close()


def _accepted(case: Case, updates: Sequence[p4rt.Update]) -> list[str]:
    """Why BMv2 refuses each update, or nothing. SwitchError: it refuses the program. Ended."""
    try:
        target = Bmv2(case)
    except (SwitchError, grpc.RpcError) as error:
        raise SwitchError("BMv2", str(error)) from error
    try:
        return refusals(target.connection, updates, target)
    finally:
        target.close()


def refusals(
    connection: Connection, updates: Sequence[p4rt.Update], bmv2: Bmv2 | None = None
) -> list[str]:
    """Writes updates one by one; why each was refused, or nothing."""
    found = []
    for one in updates:
        try:
            if bmv2 is not None:
                bmv2.write([one])
            else:
                connection.write([one])
            found.append("")
        except SwitchError as error:
            if bmv2 is not None and bmv2.ended:
                raise Ended(bmv2.log) from error
            found.append(str(error) or "refused")
    return found


def _compare_packets(case: Case, result: Result) -> None:
    ours = embedded(case)
    theirs = answer_of_bmv2(case, ours.outputs)
    if theirs is None:
        _first_that_ends(case, ours.outputs, result)
        return
    wrong = [
        i
        for i, (mine, other) in enumerate(zip(ours.outputs, theirs.outputs, strict=True))
        if sorted(mine) != sorted(other)
    ]
    for i in wrong:
        rule = explained(case, i)
        if rule:
            result.filtered[rule] += 1
            continue
        alone = replace(case, arrivals=[case.arrivals[i]])
        shown = alone if differs(alone) else replace(case, arrivals=case.arrivals[: i + 1])
        words = difference(shown)
        if words:  # else BMv2 was only late
            result.findings.append((words, shown))
    state = _state_differences(case, ours, theirs)
    if state and not wrong and difference(case):
        result.findings.append((state, case))


def _state_differences(case: Case, ours: Answer, theirs: Answer) -> str:
    """Counters, registers and digests."""
    same = [by_port(one) for one in ours.outputs]
    return "\n".join(
        differences(case, replace(ours, outputs=same), replace(theirs, outputs=same), 3)
    )


def answer_of_bmv2(case: Case, expected: list[Output], late: float = _HURRIED) -> Answer | None:
    """None: BMv2 ended."""
    target = Bmv2(case, late)
    try:
        return target.answer(expected)
    except (RuntimeError, OSError, SwitchError, grpc.RpcError):
        if target.ended:
            return None
        raise
    finally:
        target.close()


def difference(case: Case) -> str:
    """What is not the same, BMv2 having all the time it wants; "" if nothing."""
    patient = replace(case, races=True)
    ours = embedded(patient)
    theirs = answer_of_bmv2(patient, ours.outputs, _PATIENT)
    if theirs is None:
        return BMV2_ENDS
    return "\n".join(differences(patient, ours, theirs, 3))


def differs(case: Case) -> bool:
    """Whether there is a difference that is not BMv2's end."""
    return difference(case) not in ("", BMV2_ENDS)


def explained(case: Case, i: int) -> str:
    """The rule that explains what BMv2 made of packet i, or nothing."""
    if _varies(case, i):
        return TIME
    alone = replace(case, arrivals=[case.arrivals[i]])
    ours = embedded(replace(case, arrivals=case.arrivals[: i + 1])).outputs[i]
    if sorted(embedded(alone).outputs[0]) == sorted(ours) and difference(alone) == "":
        # Only what BMv2 makes of it depends on the packets before, in a program whose answer here
        # does not.
        return STALE
    return ""


def _varies(case: Case, i: int) -> bool:
    """Whether what this target makes of a packet is another thing later, or the next time."""
    target = Embedded(replace(case, arrivals=()))
    try:
        first, second = (
            sorted(target.device.inject(*case.arrivals[i], now_us=now)) for now in (0, _LATER_US)
        )
    finally:
        target.close()
    return first != second and not case.registers


def _first_that_ends(case: Case, expected: list[Output], result: Result) -> None:
    """Counts BMv2's end, and goes on behind the packet that it ended at."""
    low, high = 0, len(case.arrivals)
    while high - low > 1:  # the first `low` packets are no problem, the first `high` are
        middle = (low + high) // 2
        part = replace(case, arrivals=case.arrivals[:middle])
        if answer_of_bmv2(part, expected[:middle]) is None:
            high = middle
        else:
            low = middle
    result.filtered[BMV2_ENDS] += 1
    if low:
        _compare_packets(replace(case, arrivals=case.arrivals[:low]), result)
