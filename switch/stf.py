# SPDX-License-Identifier: Apache-2.0
"""Runs tests written in p4c's Simple Test Framework against a pipeline in process.

    python -m switch.stf PROGRAM.json TEST.stf...      status 1: a test failed; 2: it cannot run

One statement a line, `#` begins a comment:

    packet PORT HEX...                 a frame in
    expect PORT [HEX... [$]]           a frame out; `*` is any digit; with `$` it ends there;
                                       without bytes any frames may come
    add TABLE [PRIORITY] FIELD:VALUE... ACTION(NAME:VALUE, ...) [= ENTRY]
    setdefault TABLE ACTION(NAME:VALUE, ...)
    check_counter NAME(INDEX) [packets|bytes OP NUMBER]     a direct counter's INDEX is $ENTRY
    counter_read NAME INDEX            counter_write NAME INDEX PACKETS BYTES
    meter_set_rates NAME INDEX RATE:BURST RATE:BURST        meter_get_rates NAME INDEX
    meter_array_set_rates NAME RATE:BURST RATE:BURST        (tokens per microsecond, tokens)
    mirroring_add SESSION PORT         mirroring_add_mc SESSION GROUP
    mc_mgrp_create GROUP               mc_node_create INSTANCE PORT...
    mc_node_associate GROUP NODE       (nodes count from 0)
    register_write NAME INDEX VALUE    register_reset NAME      register_read NAME INDEX
    remove all, wait, no_packet

Values: 0x, 0b and decimal; a ternary value `0x12**` or `0x12 &&& 0xff`; an lpm value `0x0a000000/8`
or `0x0a**`. Names may be shortened to a suffix that is unique. A higher priority wins. Frames are
compared per port, in order, at the end, as p4c's own runner does; a port that no statement mentions
is not connected, and its output is ignored.
"""

from __future__ import annotations

import operator
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from switch.compiler import CompilerError
from switch.loader import load_program
from switch.pipeline import Pipeline
from switch.pipeline.keys import KeyElement
from switch.pipeline.meters_and_digests import Externs, Rates
from switch.program.errors import ProgramError
from switch.program.model import KeyField, Table

_OPERATORS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}
_BITS = {"0x": 4, "0o": 3, "0b": 1}


class StfError(Exception):
    """A statement that is malformed or cannot be executed; names file, line and statement."""


class Mismatch(AssertionError):  # noqa: N818
    """The output differs from what the test expects."""


@dataclass
class _Expectation:
    """A frame that a test expects: hex digits or `*`. exact: it ends there."""

    line: int
    digits: str
    exact: bool


@dataclass
class StfRunner:
    """Executes statements on a pipeline; `finish` compares the output."""

    pipeline: Pipeline
    name: str = "stf"
    outputs: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    expected: dict[int, list[_Expectation]] = field(default_factory=lambda: defaultdict(list))
    anything: set[int] = field(default_factory=set)
    connected: set[int] = field(default_factory=set)
    _groups: dict[int, list[int]] = field(default_factory=dict)
    _nodes: list[tuple[int, list[int]]] = field(default_factory=list)
    _sessions: dict[int, int] = field(default_factory=dict)
    _handles: list[tuple[str, int]] = field(default_factory=list)
    _entries: dict[str, tuple[str, int]] = field(default_factory=dict)

    def run(self, text: str) -> None:
        """Executes a whole test and compares. Raises StfError, Mismatch."""
        for number, line in enumerate(text.splitlines(), 1):
            statement = line.split("#")[0].strip()
            if statement:
                try:
                    self._statement(statement, number)
                except (KeyError, ValueError, IndexError) as error:
                    raise StfError(f"{self.name}:{number}: {statement}: {error}") from error
        self.finish()

    def finish(self) -> None:
        """Compares the frames of every port with the expected ones. Raises Mismatch."""
        for port in sorted(self.connected - self.anything):
            wanted, got = self.expected.get(port, []), self.outputs.get(port, [])
            for one, frame in zip(wanted, got, strict=False):
                self._compare(port, one, frame)
            if len(wanted) != len(got):
                frames = "\n".join(frame.hex() for frame in got)
                raise Mismatch(
                    f"{self.name}: port {port}: {len(got)} frames, expected {len(wanted)}:\n"
                    f"{frames}"
                )

    def _compare(self, port: int, one: _Expectation, frame: bytes) -> None:
        text = frame.hex()
        same = len(text) == len(one.digits) if one.exact else len(text) >= len(one.digits)
        if not same or any(
            want not in ("*", digit) for want, digit in zip(one.digits, text, strict=False)
        ):
            end = "$" if one.exact else ""
            raise Mismatch(
                f"{self.name}:{one.line}: port {port}: got\n  {text}\nexpected\n  {one.digits}{end}"
            )

    # Statements

    def _statement(self, statement: str, line: int) -> None:
        command, _, rest = statement.partition(" ")
        words = rest.split()
        command = command.lower()
        if command == "packet":
            frame = bytes.fromhex("".join(words[1:]))
            self.connected.add(int(words[0]))
            for port, out in self.pipeline.inject(int(words[0]), frame):
                self.outputs[port].append(out)
        elif command == "expect":
            self._expect(line, words)
        elif command == "add":
            self._add(rest)
        elif command == "setdefault":
            table_name, _, call = rest.partition(" ")
            table = self._table(table_name)
            name, args = self._call(table, call)
            self.pipeline.set_default(table.name, name, args)
        elif command == "check_counter":
            self._check_counter(line, rest)
        elif command in ("wait", "no_packet", "mirroring_get"):
            pass
        elif command == "remove" and words == ["all"]:
            for name, handle in self._handles:
                self.pipeline.delete(name, handle)
            self._handles.clear()
        elif command.startswith("register_"):
            self._register(command, words)
        elif command.startswith("counter_"):
            self._counter(command, words)
        elif command.startswith("meter_"):
            self._meter(command, words)
        elif command.startswith(("mc_", "mirroring_")):
            self._replication(command, [int(word, 0) for word in words])
        else:
            raise ValueError("unknown statement")

    def _expect(self, line: int, words: Sequence[str]) -> None:
        port, digits = int(words[0]), "".join(words[1:]).lower()
        self.connected.add(port)
        if digits:
            exact = digits.endswith("$")
            self.expected[port].append(_Expectation(line, digits.rstrip("$"), exact))
        else:
            self.anything.add(port)

    def _add(self, rest: str) -> None:
        rest, _, entry = rest.partition("=")
        head, call = _split_call(rest)
        words = head.split()
        table = self._table(words[0])
        words, priority = words[1:], 0
        if words and re.fullmatch(r"\d+", words[0]):
            priority, words = int(words[0]), words[1:]
        values = dict(word.rsplit(":", 1) for word in words)
        key = [self._element(one, self._value_of(one, values)) for one in table.key]
        if values:
            raise ValueError(f"table '{table.name}' has no field {', '.join(values)}")
        name, args = self._call(table, call)
        handle = self.pipeline.insert(table.name, key, name, args, priority)
        self._handles.append((table.name, handle))
        if entry:
            self._entries[entry.strip()] = table.name, handle

    @staticmethod
    def _value_of(one: KeyField, values: dict[str, str]) -> str | None:
        """Removes and returns the value of a key field, given by its name or a suffix of it."""
        names = [re.sub(r"\$(\d+)", r"[\1]", name) for name in values]
        for given, name in zip(list(values), names, strict=True):
            wanted = one.name.replace(".$valid$", ".isValid()").removesuffix("$")
            if (
                one.name in (name, name + ".$valid$")
                or wanted == name
                or one.name.endswith((f".{name}", f".{name}$", f".{name}.$valid$"))
            ):
                return values.pop(given)
        return None

    @staticmethod
    def _element(one: KeyField, text: str | None) -> KeyElement:
        if one.match == "exact":
            return _number(text or "0")
        if one.match == "lpm":
            return _prefix(text, one.width)
        if one.match == "ternary":
            return _ternary(text, one.width)
        low, _, high = (text or f"0..{(1 << one.width) - 1}").replace("->", "..").partition("..")
        return _number(low), _number(high)

    def _call(self, table: Table, call: str) -> tuple[str, list[int]]:
        """Parses `action(name:value, ...)` into the action's full name and its arguments in
        order."""
        match = re.fullmatch(r"\s*([\w.$]+)\s*\((.*)\)\s*", call)
        if not match:
            raise ValueError(f"not an action call: {call}")
        names = [self.pipeline.program.actions[one].name for one in table.action_ids]
        name = _suffix(match[1], names, f"action of table '{table.name}'")
        given = dict(part.strip().split(":") for part in match[2].split(",") if part.strip())
        action = self.pipeline.program.action_named(table.name, name)
        return name, [
            _number(given[one.name].strip()) & ((1 << one.width) - 1) for one in action.parameters
        ]

    def _table(self, name: str) -> Table:
        tables = self.pipeline.program.tables
        return tables[_suffix(name, tables, "table")]

    def _check_counter(self, line: int, rest: str) -> None:
        match = re.fullmatch(
            r"([\w.]+)\s*\((\$?\w+)\)\s*(?:(packets|bytes)\s*([=!<>]+)\s*(\w+))?", rest
        )
        if not match:
            raise ValueError("not a counter check")
        name, index, kind, op, number = match.groups()
        full = _suffix(name, self.pipeline.program.counters, "counter")
        packets, octets = self._counted(full, index)
        value = octets if kind == "bytes" else packets
        if kind and not _OPERATORS[op](value, int(number, 0)):
            raise Mismatch(
                f"{self.name}:{line}: {full}[{index}] {kind} = {value}, not {op} {number}"
            )

    def _counted(self, name: str, index: str) -> tuple[int, int]:
        """Returns (packets, bytes) of a counter's cell, or of the entry that a direct counter
        counts."""
        table = self.pipeline.program.counters[name].binding
        if table is None:
            return self.pipeline.counter(name, int(index, 0))
        of, handle = self._entries[index.removeprefix("$")]
        if of != table:
            raise ValueError(f"entry {index} is of table '{of}', and counter '{name}' of '{table}'")
        return self.pipeline.direct_counter(table, handle)

    def _counter(self, command: str, words: Sequence[str]) -> None:
        name = _suffix(words[0], self.pipeline.program.counters, "counter")
        if command == "counter_read":
            self._counted(name, words[1])
        elif command == "counter_write":
            self.pipeline.set_counter(name, *(int(word, 0) for word in words[1:4]))
        else:
            raise ValueError("unknown statement")

    def _meter(self, command: str, words: Sequence[str]) -> None:
        meters, externs = self.pipeline.program.meters, Externs(self.pipeline)
        name = _suffix(words[0], meters, "meter")
        if command == "meter_get_rates":
            externs.meter(name, int(words[1], 0))
        elif command == "meter_set_rates":
            externs.set_meter(name, int(words[1], 0), _rates(words[2:]))
        elif command == "meter_array_set_rates":
            for index in range(meters[name].size):
                externs.set_meter(name, index, _rates(words[1:]))
        else:
            raise ValueError("unknown statement")

    def _register(self, command: str, words: Sequence[str]) -> None:
        registers = self.pipeline.program.registers
        name = _suffix(words[0], registers, "register")
        if command == "register_write":
            self.pipeline.set_register(name, int(words[1], 0), int(words[2], 0))
        elif command == "register_reset":
            for index in range(registers[name].size):
                self.pipeline.set_register(name, index, 0)
        elif command == "register_read":
            self.pipeline.register(name, int(words[1], 0))
        else:
            raise ValueError("unknown statement")

    # Replication: nodes belong to groups, sessions point at groups

    def _replication(self, command: str, numbers: list[int]) -> None:
        if command == "mirroring_add":
            self.pipeline.set_clone_session(numbers[0], [(numbers[1], 0)])
        elif command == "mirroring_add_mc":
            self._sessions[numbers[0]] = numbers[1]
        elif command == "mirroring_delete":
            self.pipeline.delete_clone_session(numbers[0])
        elif command == "mc_mgrp_create":
            self._groups[numbers[0]] = []
        elif command == "mc_node_create":
            self._nodes.append((numbers[0], numbers[1:]))
        elif command == "mc_node_update":
            self._nodes[numbers[0]] = (self._nodes[numbers[0]][0], numbers[1:])
        elif command == "mc_node_associate":
            self._groups[numbers[0]].append(numbers[1])
        else:
            raise ValueError("unknown statement")
        for group in self._groups:
            self.pipeline.set_multicast_group(group, self._replicas(group))
        for session, group in self._sessions.items():
            self.pipeline.set_clone_session(session, self._replicas(group))

    def _replicas(self, group: int) -> list[tuple[int, int]]:
        return [
            (port, self._nodes[node][0])
            for node in self._groups.get(group, [])
            for port in self._nodes[node][1]
        ]


def run_file(pipeline: Pipeline, path: str | Path) -> None:
    """Runs a test file. Raises StfError, Mismatch, OSError."""
    StfRunner(pipeline, str(path)).run(Path(path).read_text())


def _suffix(name: str, names: Iterable[str], kind: str) -> str:
    """Returns the one full name that is `name` or ends with it."""
    names = list(names)
    if name in names:
        return name
    found = sorted({one for one in names if one.endswith(f".{name}")}) or sorted(
        {one for one in names if one.endswith(name)}
    )
    if len(found) != 1:
        raise KeyError(f"{'no' if not found else 'more than one'} {kind} '{name}'")
    return found[0]


def _split_call(text: str) -> tuple[str, str]:
    """Splits `... ACTION(...)` before the action's name."""
    start = text.index("(")
    while start and text[start - 1] == " ":
        start -= 1
    start = text.rfind(" ", 0, start) + 1
    return text[:start], text[start:]


def _rates(words: Sequence[str]) -> Rates:
    """Parses two RATE:BURST words, the committed one first."""
    (committed, burst), (peak, most) = (word.split(":") for word in words)
    slow, fast = (round(1_000_000 * float(rate)) for rate in (committed, peak))
    return Rates(slow, int(burst), fast, int(most))


def _number(text: str) -> int:
    return int(text, 0) if text[:2].lower() in _BITS else int(text, 10)


def _wild(text: str) -> tuple[int, int, int]:
    """Parses digits with `*` for any; returns (value, mask, bits)."""
    bits, digits = _BITS[text[:2].lower()], text[2:]
    base = 1 << bits
    value = int(digits.replace("*", "0"), base)
    mask = int("".join("0" if one == "*" else f"{base - 1:x}" for one in digits), base)
    return value, mask, bits * len(digits)


def _ternary(text: str | None, width: int) -> tuple[int, int]:
    if text is None:
        return 0, 0
    if "&&&" in text:
        first, _, second = text.partition("&&&")
        return _number(first), _number(second)
    everything = (1 << width) - 1
    if "*" not in text:
        return _number(text), everything
    value, mask, bits = _wild(text)
    # Digits stand for whole groups of bits; omitted leading ones must match as zero.
    return value & everything, (mask | ~((1 << bits) - 1)) & everything


def _prefix(text: str | None, width: int) -> tuple[int, int]:
    if text is None:
        return 0, 0
    if "/" in text:
        first, _, length = text.partition("/")
        return _number(first), int(length)
    if "*" not in text:
        return _number(text), width
    value, mask, _ = _wild(text)
    return value, mask.bit_count()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs tests, each with a pipeline of its own; returns the exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if set(words) & {"-h", "--help"}:
        print(__doc__)
        return 0
    if len(words) < 2 or words[0].startswith("-"):
        print("usage: python -m switch.stf PROGRAM.json TEST.stf...", file=sys.stderr)
        return 2
    failed = False
    try:
        program = load_program(words[0])
        for path in words[1:]:
            with Pipeline(program) as pipeline:
                try:
                    run_file(pipeline, path)
                    print(f"{path}: ok")
                except Mismatch as error:
                    failed = True
                    print(f"{path}: failed\n{error}")
    except (CompilerError, OSError, ProgramError, StfError, UnicodeDecodeError) as error:
        print(f"stf: {error}", file=sys.stderr)
        return 2
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
