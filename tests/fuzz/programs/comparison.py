# SPDX-License-Identifier: Apache-2.0
"""Compares a program with its entries and packets on this target and on BMv2."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from controller.p4rt.connection import Connection, SwitchError
from switch.loader import parse_program
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from switch.pipeline import PipelineError
from tests.fuzz.programs.reduction import reduced
from tests.fuzz.programs.rewrites import PREFIX, key_widths, rewritten
from tests.packet.differential.bmv2 import Bmv2
from tests.packet.differential.case import (
    Answer,
    Case,
    Embedded,
    Output,
    by_port,
    differences,
    embedded,
)

# Rules that explain a difference by a property of BMv2, by name.
STALE = "BMv2 reads what an earlier packet left in a header that is not valid"
TIME = "depends on the time or on chance"
BMV2_ENDS = "BMv2 ends"
ENDLESS = "goes round without end"
EMPTY = "BMv2 sends a packet of no bytes"
OPEN = "BMv2 takes no entry for a key whose width P4Info leaves open"
ALIKE = "not looked at: many more of the same program are different, and explained"
BEHIND = "not looked at: behind many packets of the same program at which BMv2 ends"
TRANSLATED = "BMv2 takes values of translated types as if they were the program's"
RANGE = "BMv2 takes the width of a range's numbers for that of the key"
FOLLOWS = "another entry of the table or profile is in one target alone"
UNUSED = "BMv2 takes no entry for an action of which p4c left out parameters"
# Microseconds since the start at which a packet is tried again, for TIME.
_LATER_US = 1_234_567_891
# Seconds that BMv2 has for a packet that this target sends: at first, and when it has not come.
_HURRIED, _PATIENT = 0.3, 2.0
# Differences of one program that are looked at one by one, each in a BMv2 of its own.
MOST_EXPLAINED = 60
# How often the packets of one program are compared again without those that a rule explains.
MOST_TIMES = 4
# Packets of one program at which BMv2 may end before the others are left.
MOST_ENDS = 5
MOST_FOUND = 3
# Packets that are run one by one to see whether they depend on each other.
MOST_SINGLE = 10


@dataclass
class Result:
    """The result for one program.

    refused_here, refused_there: why a target does not take it; findings: differences that no rule
    explains, each with the case that shows it; filtered: by rule.
    """

    name: str
    refused_here: str = ""
    refused_there: str = ""
    packets: int = 0
    updates: int = 0
    findings: list[tuple[str, Case | None]] = field(default_factory=list)
    filtered: Counter[str] = field(default_factory=Counter)


class Ended(Exception):  # noqa: N818
    """BMv2 has exited; the message is the end of its log."""


def compare(case: Case) -> Result:
    """Runs a case on both targets and examines every differing packet."""
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
    _compare_writes(case, here, there, result)
    both = [
        one for one, *refusals in zip(case.updates, here, there, strict=True) if not any(refusals)
    ]
    case = replace(case, updates=both)
    ending = _that_end(case)
    result.filtered[ENDLESS] += len(case.arrivals) - len(ending)
    case = replace(case, arrivals=ending)
    result.updates, result.packets = len(both), len(case.arrivals)
    if case.arrivals:
        _compare_packets(case, result)
    return result


def _compare_writes(case: Case, here: Sequence[str], there: Sequence[str], result: Result) -> None:
    """Counts each update that one target alone refuses by a rule, or as a finding. here, there: why
    each refuses it, or nothing."""
    short, translated = _shortened(case), _translated(case)
    open_tables = {
        one.preamble.id
        for one in case.p4info.message.tables
        if not all(field.bitwidth for field in one.match_fields)
    }
    profile_of = {one.preamble.id: one.implementation_id for one in case.p4info.message.tables}
    unlike: set[int] = set()  # tables and profiles of which the targets have not the same entries
    for i, (update, ours, theirs) in enumerate(zip(case.updates, here, there, strict=True)):
        if bool(ours) == bool(theirs):
            continue
        entry, member = update.entity.table_entry, update.entity.action_profile_member
        profile = member.action_profile_id or update.entity.action_profile_group.action_profile_id
        places = {entry.table_id, profile, profile_of.get(entry.table_id, 0)} - {0}
        if ({entry.table_id} | _actions(update)) & translated:
            result.filtered[TRANSLATED] += 1
        elif theirs and _actions(update) & short:
            result.filtered[UNUSED] += 1
        elif theirs and entry.table_id in open_tables:
            result.filtered[OPEN] += 1
        elif theirs and _ragged_prefix(case, entry):
            result.filtered[PREFIX] += 1
        elif _seems_whole(entry) and theirs:
            result.filtered[RANGE] += 1
        elif places & unlike:
            result.filtered[FOLLOWS] += 1
        else:
            words = f"a write is refused {'here' if ours else 'by BMv2'}: {ours or theirs}"
            shown = replace(case, updates=case.updates[: i + 1], arrivals=())
            result.findings.append((words, shown))
        unlike |= places


def _that_end(case: Case) -> list[tuple[int, bytes]]:
    """Returns the arrivals of which no copy goes round for ever, nor the parser: BMv2 would do
    nothing else then."""
    target, found = Embedded(case), []
    assert target.device.pipeline is not None
    stats = target.device.pipeline.stats
    try:
        for port, frame in case.arrivals:
            loops = stats()["parser_timeouts"]
            with contextlib.suppress(PipelineError):
                target.exchange(port, frame)
                if stats()["parser_timeouts"] == loops:
                    found.append((port, frame))
    finally:
        target.close()
    return found


def _shortened(case: Case) -> set[int]:
    """Returns ids of actions that have fewer parameters in the program than in the P4Info."""
    program = parse_program(case.program, case.name)
    tables = (program.tables.get(one.preamble.name) for one in case.p4info.message.tables)
    chosen = (program.actions[i] for table in tables if table for i in table.action_ids)
    counts = {one.name: len(one.parameters) for one in chosen}
    return {
        one.preamble.id
        for one in case.p4info.message.actions
        if len(one.params) > counts.get(one.preamble.name, len(one.params))
    }


def _translated(case: Case) -> set[int]:
    """Ids of tables and actions that have a value of a type that is translated for the control
    plane (P4Runtime spec, "Translation of User-Defined Types")."""
    info = case.p4info.message
    types = {
        name for name, one in info.type_info.new_types.items() if one.HasField("translated_type")
    }
    fields = [(one.preamble.id, one.match_fields) for one in info.tables]
    params = [(one.preamble.id, one.params) for one in info.actions]
    return {
        number
        for number, members in (*fields, *params)
        if any(one.type_name.name in types for one in members)
    }


def _ragged_prefix(case: Case, entry: p4rt.TableEntry) -> bool:
    """True if a prefix of an entry has bits behind its end, when that is counted from the first bit
    of the key's first byte."""
    widths = key_widths(case)
    for one in entry.match:
        if one.HasField("lpm"):
            whole = 8 * ((widths[entry.table_id, one.field_id] + 7) // 8)
            behind = (1 << whole - one.lpm.prefix_len) - 1
            if int.from_bytes(one.lpm.value, "big") & behind:
                return True
    return False


def _seems_whole(entry: p4rt.TableEntry) -> bool:
    """True if a range of an entry goes from 0 to the last number of as many bytes as it is written
    in, though its key may be wider."""
    return any(
        not any(one.range.low)
        and len(one.range.low) == len(one.range.high)
        and set(one.range.high) == {0xFF}
        for one in entry.match
        if one.HasField("range")
    )


def _actions(update: p4rt.Update) -> set[int]:
    """Returns ids of the actions that an update names."""
    entry, member = update.entity.table_entry.action, update.entity.action_profile_member
    chosen = entry.action_profile_action_set.action_profile_actions
    return {
        entry.action.action_id,
        member.action.action_id,
        *(one.action.action_id for one in chosen),
    }


def _accepted_here(case: Case, updates: Sequence[p4rt.Update]) -> list[str]:
    target = Embedded(case)
    try:
        return refusals(target.connection, updates)
    finally:
        target.close()


def _accepted(case: Case, updates: Sequence[p4rt.Update]) -> list[str]:
    """Returns BMv2's error for each update, or "". Raises SwitchError if it rejects the program,
    or Ended."""
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


def _compare_packets(case: Case, result: Result, again: int = MOST_TIMES) -> None:
    ours = embedded(case)
    theirs = answer_of_bmv2(case, ours.outputs)
    if theirs is None:
        _around_the_end(case, ours.outputs, result)
        return
    result.filtered[EMPTY] += sum(1 for one in theirs.outputs if len(one) > len(_whole(one)))
    wrong, state = _wrong(ours, theirs), _state_differences(case, ours, theirs)
    for rule, changed in rewritten(case) if wrong or state else ():
        mine = embedded(changed)
        other = answer_of_bmv2(changed, mine.outputs)
        if other is None:
            break
        left, unlike = _wrong(mine, other), _state_differences(changed, mine, other)
        result.filtered[rule] += len(set(wrong) - set(left)) or bool(state and not unlike)
        case, ours, wrong, state = changed, mine, left, unlike
    if wrong:
        stale = _explain(case, wrong, result)
        if stale and not result.findings and again:
            # What they have left in counters and registers is not the same, either.
            kept = [one for i, one in enumerate(case.arrivals) if i not in stale]
            _compare_packets(replace(case, arrivals=kept), result, again - 1)
    elif state and _state_differences(case, ours, later := embedded(case, _LATER_US)):
        left = _state_differences(case, *(timeless(one, ours, later) for one in (ours, theirs)))
        if left:
            result.findings.append((left, case))
        else:
            result.filtered[TIME] += 1
    elif state and difference(case):
        small = reduced(case, differs)
        single = [replace(small, arrivals=[one]) for one in small.arrivals]
        few = 1 < len(single) <= MOST_SINGLE
        if few and _separable(small, single) and not any(map(difference, single)):
            result.filtered[STALE] += 1
        else:
            result.findings.append((state, small))


def _wrong(ours: Answer, theirs: Answer) -> list[int]:
    """Returns the arrivals whose outputs differ."""
    pairs = zip(ours.outputs, theirs.outputs, strict=True)
    return [i for i, (mine, other) in enumerate(pairs) if sorted(mine) != sorted(_whole(other))]


def _explain(case: Case, wrong: list[int], result: Result) -> set[int]:
    """Counts each packet that is not the same by a rule, or as a finding. Returns those in which
    BMv2 reads what an earlier packet left."""
    stale: set[int] = set()
    for number, i in enumerate(wrong):
        if number >= MOST_EXPLAINED and not result.findings:
            result.filtered[ALIKE] += len(wrong) - number
            return stale.union(wrong[number:])
        rule = explained(case, i)
        if rule:
            result.filtered[rule] += 1
            if rule == STALE:
                stale.add(i)
            continue
        alone = replace(case, arrivals=[case.arrivals[i]])
        shown = alone if differs(alone) else replace(case, arrivals=case.arrivals[: i + 1])
        words = difference(shown)
        if words:  # otherwise BMv2 was only late
            result.findings.append((words, shown))
        if len(result.findings) >= MOST_FOUND:
            break
    return stale


def _separable(case: Case, single: list[Case]) -> bool:
    """True if packets make here what each of them makes alone: counters sum up, registers have what
    the last one wrote, digests are reported in order."""
    whole, parts = embedded(case), [embedded(one) for one in single]
    registers: dict[str, dict[int, int]] = {}
    counts: Counter[tuple[str, int]] = Counter()
    found: dict[str, list[bytes]] = {}
    for part in parts:
        for name, cells in part.registers.items():
            registers.setdefault(name, {}).update(cells)
        counts.update(_counted(part))
        for name, messages in part.digests.items():
            found.setdefault(name, []).extend(messages)
    return (registers, counts, found) == (whole.registers, _counted(whole), whole.digests)


def _counted(answer: Answer) -> Counter[tuple[str, int]]:
    """Returns the packet count of each counter cell."""
    cells = ((name, i, one) for name, found in answer.counters.items() for i, one in found.items())
    return Counter({(name, i): packets for name, i, (packets, _) in cells})


def _whole(outputs: Output) -> Output:
    """Removes empty packets, which interfaces reject."""
    return [one for one in outputs if one[1]]


def timeless(answer: Answer, early: Answer, late: Answer) -> Answer:
    """Returns an answer without the cells and digests that are not the same early and late."""

    def steady(kind: str) -> dict[str, Any]:
        found, before, after = (getattr(one, kind) for one in (answer, early, late))
        return {
            name: {
                i: value
                for i, value in cells.items()
                if before.get(name, {}).get(i) == after.get(name, {}).get(i)
            }
            for name, cells in found.items()
        }

    digests = {
        name: messages
        for name, messages in answer.digests.items()
        if early.digests.get(name) == late.digests.get(name)
    }
    hits = [
        pair
        for pair, before, after in zip(answer.hits, early.hits, late.hits, strict=True)
        if before == after
    ]
    return replace(
        answer,
        counters=steady("counters"),
        registers=steady("registers"),
        hits=hits,
        digests=digests,
    )


def _state_differences(case: Case, ours: Answer, theirs: Answer) -> str:
    """Compares counters, registers and digests."""
    same = [by_port(one) for one in ours.outputs]
    return "\n".join(
        differences(case, replace(ours, outputs=same), replace(theirs, outputs=same), 3)
    )


def answer_of_bmv2(case: Case, expected: list[Output], late: float = _HURRIED) -> Answer | None:
    """Returns BMv2's answer; None if it exited."""
    target = Bmv2(case, late)
    try:
        return target.answer(expected)
    except (RuntimeError, OSError, SwitchError, grpc.RpcError):
        if target.ends():
            return None
        raise
    finally:
        target.close()


def difference(case: Case) -> str:
    """Describes the difference when BMv2 has enough time; "" if there is none."""
    if not case.arrivals:
        return ""
    patient = replace(case, races=True)
    ours = embedded(patient)
    theirs = answer_of_bmv2(patient, ours.outputs, _PATIENT)
    if theirs is None:
        return BMV2_ENDS
    theirs.outputs = [_whole(one) for one in theirs.outputs]
    return "\n".join(differences(patient, ours, theirs, 3))


def differs(case: Case) -> bool:
    """Tells whether there is a difference other than an exit of BMv2."""
    return difference(case) not in ("", BMV2_ENDS)


def explained(case: Case, i: int) -> str:
    """Returns the rule that explains BMv2's output for packet i, or ""."""
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
    """Tells whether this target's output for a packet depends on earlier packets or time."""
    until = replace(case, arrivals=case.arrivals[: i + 1])
    if sorted(embedded(until).outputs[i]) != sorted(embedded(until, _LATER_US).outputs[i]):
        return True
    target = Embedded(replace(case, arrivals=()))
    try:
        first, second = (
            sorted(target.device.inject(*case.arrivals[i], now_us=now)) for now in (0, _LATER_US)
        )
    finally:
        target.close()
    return first != second and not case.registers


def _around_the_end(case: Case, expected: list[Output], result: Result) -> None:
    """Counts BMv2's end, and compares what is before and behind the packet that it ends at."""
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
    rest = case.arrivals[high:]
    if rest and result.filtered[BMV2_ENDS] < MOST_ENDS:
        _compare_packets(replace(case, arrivals=rest), result)
    else:
        result.filtered[BEHIND] += len(rest)
