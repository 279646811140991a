# SPDX-License-Identifier: Apache-2.0
"""Differential cases: a program with entries and packets, and this target's answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from controller.p4rt.connection import Connection, DeviceConnection
from controller.p4rt.entries import P4Info
from switch.p4runtime.device import Device
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from switch.program.model import Program

PORTS = range(8)
DEVICE = 1
MOST = (1 << 63) - 1

Output = list[tuple[int, bytes]]


@dataclass(frozen=True)
class Case:
    """Packets that arrive one by one, each after the outputs of the one before.

    updates: P4Runtime updates applied before the first; program: what p4c wrote, or was made of it.
    races: copies of one packet may pass each other on BMv2, whose threads take them round.
    anywhere: packets may leave by ports without a listener; those are not looked at.
    queues: of each port, for priorities 0 to queues - 1.
    """

    name: str
    program: bytes
    p4info: P4Info
    updates: Sequence[p4rt.Update]
    arrivals: Sequence[tuple[int, bytes]]
    races: bool = False
    anywhere: bool = False
    queues: int = 1

    @cached_property
    def program_sha256(self) -> str:
        """The hash of the program without source locations, which move with comments."""
        text = json.dumps(without_places(json.loads(self.program)), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def inputs_sha256(self) -> str:
        """The hash of entries and packets."""
        whole = hashlib.sha256()
        for update in self.updates:
            whole.update(update.SerializeToString(deterministic=True))
        for port, frame in self.arrivals:
            whole.update(port.to_bytes(2, "big") + len(frame).to_bytes(4, "big") + frame)
        return whole.hexdigest()

    @property
    def learns(self) -> bool:
        return any(one.entity.HasField("digest_entry") for one in self.updates)

    @cached_property
    def registers(self) -> list[str]:
        return [one.preamble.name for one in self.p4info.message.registers]


@dataclass
class Answer:
    """outputs: of each arrival, by port, in the order in which a port sent them.

    counters: {name: {index: (packets, bytes)}}, registers: {name: {index: value}}, zeros left out,
    a value being MOST at most, which is all that BMv2 tells; hits: of every entry with a direct
    counter, in the order of the updates. digests: {name: messages}, as P4Data, each in a list of
    its own.
    """

    outputs: list[Output] = field(default_factory=list)
    counters: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    registers: dict[str, dict[int, int]] = field(default_factory=dict)
    hits: list[tuple[int, int]] = field(default_factory=list)
    digests: dict[str, list[bytes]] = field(default_factory=dict)

    def learn(self, case: Case, received: p4rt.DigestList) -> None:
        """A list of one message."""
        [name] = [
            one.preamble.name
            for one in case.p4info.message.digests
            if one.preamble.id == received.digest_id
        ]
        [message] = received.data
        self.digests.setdefault(name, []).append(message.SerializeToString(deterministic=True))


def without_places(node: Any) -> Any:
    """Returns a compiled program's JSON without source locations."""
    if isinstance(node, dict):
        return {key: without_places(value) for key, value in node.items() if key != "source_info"}
    return [without_places(one) for one in node] if isinstance(node, list) else node


def program_files(path: Path) -> tuple[bytes, P4Info]:
    """A program's JSON and its P4Info, which lies beside it."""
    return path.read_bytes(), P4Info.load(path.with_suffix(".p4info.txtpb"))


def _same_key(one: p4rt.TableEntry, other: p4rt.TableEntry) -> bool:
    keys = [sorted(each.SerializeToString() for each in entry.match) for entry in (one, other)]
    return keys[0] == keys[1] and one.priority == other.priority


def read_counters(case: Case, connection: Connection, answer: Answer) -> None:
    """Fills counters and hits in, over P4Runtime."""
    for counter in case.p4info.message.counters:
        asked = p4rt.Entity(counter_entry=p4rt.CounterEntry(counter_id=counter.preamble.id))
        cells = [one.counter_entry for one in connection.read([asked])]
        answer.counters[counter.preamble.name] = {
            int(one.index.index): (int(one.data.packet_count), int(one.data.byte_count))
            for one in cells
            if one.data.packet_count or one.data.byte_count
        }
    counted = {one.direct_table_id for one in case.p4info.message.direct_counters}
    for update in case.updates:
        entry = update.entity.table_entry
        if entry.table_id in counted and not entry.is_default_action:
            asked = p4rt.Entity(direct_counter_entry=p4rt.DirectCounterEntry(table_entry=entry))
            asked.direct_counter_entry.table_entry.ClearField("action")
            # An entry that matches everything names none: a read of it gets all.
            read = [one.direct_counter_entry for one in connection.read([asked])]
            data = next(one.data for one in read if _same_key(one.table_entry, entry))
            answer.hits.append((int(data.packet_count), int(data.byte_count)))


class Embedded:
    """This target, called in process; `exchange` returns the outputs of an arrival."""

    def __init__(self, case: Case, now_us: int = 0) -> None:
        """now_us: the time at which everything happens."""
        self.case, self._now_us = case, now_us
        self.device = Device(DEVICE, priority_queues=case.queues)
        self.connection = DeviceConnection("embedded", self.device)
        self.connection.open()
        self.connection.push(case.p4info.message, case.program)
        if case.updates:
            self.connection.write(case.updates)
        # A primary of another role receives the same as the one that writes.
        self.notices: list[p4rt.StreamMessageResponse] = []
        self._listener = self.device.open_stream(self.notices.append)
        request = p4rt.StreamMessageRequest()
        request.arbitration.device_id = DEVICE
        request.arbitration.role.name = "listener"
        request.arbitration.election_id.low = 1
        self._listener.receive(request)

    def exchange(self, port: int, frame: bytes) -> Output:
        return self.device.inject(port, frame, now_us=self._now_us)

    def registers(self) -> dict[str, dict[int, int]]:
        pipeline = self.device.pipeline
        assert pipeline is not None
        program: Program = pipeline.program
        found: dict[str, dict[int, int]] = {}
        for name in self.case.registers:
            cells = (pipeline.register(name, i) for i in range(program.registers[name].size))
            found[name] = {i: min(value, MOST) for i, value in enumerate(cells) if value}
        return found

    def close(self) -> None:
        self._listener.close()
        self.connection.close()
        self.device.close()


def by_port(outputs: Output) -> Output:
    """Sorted by port; what one port sent stays in its order."""
    return sorted(outputs, key=lambda one: one[0])


def embedded(case: Case, now_us: int = 0) -> Answer:
    """This target's answer."""
    target = Embedded(case, now_us)
    try:
        answer = Answer()
        for port, frame in case.arrivals:
            sent = target.exchange(port, frame)
            listened = [one for one in sent if one[0] in PORTS]
            assert case.anywhere or listened == sent, f"{case.name}: a port without a listener"
            answer.outputs.append(by_port(listened))
        read_counters(case, target.connection, answer)
        answer.registers = target.registers()
        for one in target.notices:
            if one.HasField("digest"):
                answer.learn(case, one.digest)
        return answer
    finally:
        target.close()


def differences(case: Case, ours: Answer, theirs: Answer, most: int = 5) -> list[str]:
    """Describes the first few differences."""
    found: list[str] = []
    for i, (port, frame) in enumerate(case.arrivals):
        mine, other = ours.outputs[i], theirs.outputs[i]
        if mine != other and not (case.races and sorted(mine) == sorted(other)):
            found.append(
                f"{case.name}: packet {i} on port {port}: {frame.hex()}\n"
                f"  embedded {_shown(mine)}\n  BMv2     {_shown(other)}"
            )
    for kind, one, another in (
        ("counter", ours.counters, theirs.counters),
        ("register", ours.registers, theirs.registers),
    ):
        for name in sorted({*one, *another}):
            cells, others = one.get(name, {}), another.get(name, {})
            for index in sorted({*cells, *others}):
                if cells.get(index, 0) != others.get(index, 0):
                    found.append(
                        f"{case.name}: {kind} {name}[{index}]: embedded {cells.get(index, 0)}, "
                        f"BMv2 {others.get(index, 0)}"
                    )
    for i, pair in enumerate(zip(ours.hits, theirs.hits, strict=True)):
        if pair[0] != pair[1]:
            found.append(f"{case.name}: hits of entry {i}: embedded {pair[0]}, BMv2 {pair[1]}")
    for name in sorted({*ours.digests, *theirs.digests}):
        mine, other = (one.digests.get(name, []) for one in (ours, theirs))
        if mine != other:
            found.append(
                f"{case.name}: digest {name}: embedded {[one.hex() for one in mine]}, "
                f"BMv2 {[one.hex() for one in other]}"
            )
    more = [f"... and {len(found) - most} more"] if len(found) > most else []
    return found[:most] + more


def _shown(outputs: Output) -> str:
    return "; ".join(f"{port}: {frame.hex()}" for port, frame in outputs) or "nothing"
