# SPDX-License-Identifier: Apache-2.0
"""Reads a BMv2 JSON document into a Program: one function per kind of object in JSON_format.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from switch.codegen.hashes_and_checksums import ALGORITHMS
from switch.loader import action_profiles, value_sets
from switch.loader.header_types import MOST_BITS, MOST_CELLS, check, source_of
from switch.loader.meters_and_digests import read_learn_lists, read_meter
from switch.loader.parse_states import read_state
from switch.loader.reader import Reader
from switch.program import expressions
from switch.program.errors import ProgramError, Source, UnsupportedConstruct, consistent
from switch.program.expressions import (
    Data,
    FieldValue,
    HeaderRef,
    Json,
    ValidBit,
    VarbitField,
)
from switch.program.model import (
    Action,
    ActionParameter,
    Calculation,
    CalculationInput,
    Checksum,
    Conditional,
    Control,
    Counter,
    Entry,
    FieldList,
    KeyField,
    Program,
    Register,
    Table,
    digest_of,
)

Named = TypeVar("Named")

# Priorities of the control plane are positive 32-bit numbers, the highest wins; in the JSON the
# lowest one does.
_TOP_PRIORITY = (1 << 31) - 1


def load_program(path: str | Path) -> Program:
    """Reads a program from a JSON file. Raises ProgramError, UnsupportedConstruct, OSError."""
    return parse_program(Path(path).read_bytes(), str(path))


# All switches of a process share what was read, also after pushing a program once more: a Program
# is immutable.
@lru_cache(maxsize=8)
def parse_program(text: bytes, name: str = "program") -> Program:
    """Reads a file's content; returns the same object for the same text and name.

    name: for messages. Raises ProgramError, UnsupportedConstruct.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProgramError(
            f"{name}: not a JSON document: {error}; compile with p4c-bm2-ss"
        ) from error
    return read_program(document, name, digest_of(text))


def read_program(document: Json, name: str = "program", digest: str | None = None) -> Program:
    """Reads a decoded document.

    digest: of its text; None: of JSON made of it. Raises ProgramError, UnsupportedConstruct.
    """
    if not isinstance(document, dict) or "__meta__" not in document:
        raise ProgramError(f"{name}: not a BMv2 program (no __meta__); compile with p4c-bm2-ss")
    with consistent(name):
        version = document["__meta__"].get("version", [0, 0])
        if version[0] != 2:
            raise ProgramError(f"{name}: BMv2 JSON format {version[0]}.{version[1]}, need 2.x")
        if digest is None:
            digest = digest_of(json.dumps(document).encode())
        return _Loader(document, name).program(digest)


class _Loader:
    """Reads one document."""

    def __init__(self, document: Json, name: str) -> None:
        self.document = document
        self.name = name
        self._refuse_whole_kinds()
        self._reader = Reader(document, name)

    def program(self, digest: str) -> Program:
        document, reader = self.document, self._reader
        parser = document["parsers"][0]
        deparser = document["deparsers"][0]
        controls = {one["name"]: self._control(one) for one in document["pipelines"]}
        states = _by_name(parser["parse_states"], lambda one: read_state(reader, one))
        return Program(
            name=self.name,
            digest=digest,
            headers=_frozen(reader.headers),
            stacks=_frozen(reader.stacks),
            unions=_frozen(reader.unions),
            union_stacks=_frozen(reader.union_stacks),
            field_lists=_frozen({one["id"]: _field_list(one) for one in document["field_lists"]}),
            errors=_frozen(dict(map(tuple, document["errors"]))),
            enums=_frozen({one["name"]: dict(one["entries"]) for one in document["enums"]}),
            parser_states=states,
            first_state=parser["init_state"],
            deparse_order=tuple(deparser["order"]),
            deparser_primitives=tuple(
                reader.primitive(one) for one in deparser.get("primitives", [])
            ),
            actions=_frozen({one["id"]: self._action(one) for one in document["actions"]}),
            ingress=controls["ingress"],
            egress=controls["egress"],
            counters=_by_name(document["counter_arrays"], _counter),
            registers=_by_name(document["register_arrays"], _register),
            meters=_by_name(document.get("meter_arrays", []), lambda one: read_meter(reader, one)),
            learn_lists=_frozen(read_learn_lists(reader, document.get("learn_lists", []))),
            calculations=_by_name(
                [*document["calculations"], *action_profiles.selectors(document)], self._calculation
            ),
            checksums=tuple(self._checksum(one) for one in document["checksums"]),
            aliases=_frozen(
                {one: tuple(target) for one, target in document.get("field_aliases", [])}
            ),
            profiles=_by_name(action_profiles.nodes(document), action_profiles.profile),
            value_sets=_frozen(value_sets.declared(document.get("parse_vsets", []), states)),
        )

    def _refuse_whole_kinds(self) -> None:
        for one in self.document.get("extern_instances", []):
            raise UnsupportedConstruct(f"extern object '{one['name']}'", source_of(one))
        for pipeline in self.document["pipelines"]:
            for one in pipeline.get("action_calls", []):
                raise UnsupportedConstruct(f"action call '{one['name']}'", source_of(one))
        for kind in ("parsers", "deparsers"):
            if len(self.document[kind]) != 1:
                raise UnsupportedConstruct(f"a program with {len(self.document[kind])} {kind}")

    def _action(self, node: Json) -> Action:
        parameters = tuple(
            ActionParameter(one["name"], one["bitwidth"]) for one in node["runtime_data"]
        )
        widths = tuple(one.width for one in parameters)
        primitives = tuple(self._reader.primitive(one, widths) for one in node["primitives"])
        return Action(node["id"], node["name"], parameters, primitives, source_of(node))

    # Controls

    def _control(self, node: Json) -> Control:
        return Control(
            node["name"],
            node["init_table"],
            _by_name(node["tables"], self._table),
            _by_name(node["conditionals"], self._conditional),
        )

    def _conditional(self, node: Json) -> Conditional:
        return Conditional(
            node["name"],
            self._reader.boolean(node["expression"], node),
            node["true_next"],
            node["false_next"],
            source_of(node),
        )

    def _table(self, node: Json) -> Table:
        where = source_of(node)
        profile = node["action_profile"] if node["type"] in ("indirect", "indirect_ws") else None
        if profile is None and node["type"] != "simple":
            raise UnsupportedConstruct(f"table '{node['name']}' of type '{node['type']}'", where)
        if profile is not None and (node.get("entries") or node.get("default_entry")):
            raise UnsupportedConstruct(f"entries of '{node['name']}', which has a profile", where)
        size = node["max_size"]
        check(0 <= size <= MOST_CELLS, f"table '{node['name']}' has room for {size} entries")
        key = tuple(self._key_field(one, node) for one in node["key"])
        default = node.get("default_entry")
        by_hit = "__HIT__" in node["next_tables"] or "__MISS__" in node["next_tables"]
        base = node.get("base_default_next")
        following = {
            action: node["next_tables"].get(name, base)
            for action, name in zip(node["action_ids"], node["actions"], strict=True)
        }
        return Table(
            name=node["name"],
            match=node["match_type"],
            key=key,
            action_ids=tuple(node["action_ids"]),
            max_size=size,
            with_counters=bool(node["with_counters"]),
            ages=bool(node.get("support_timeout")),
            meter=node.get("direct_meters") or None,
            default_action_id=default["action_id"] if default else None,
            default_args=_values(default["action_data"]) if default else (),
            default_is_const=bool(default and default.get("action_const")),
            entries=tuple(_entry(one) for one in node.get("entries", [])),
            entries_are_const="entries" in node,
            by_hit=by_hit,
            next_on_hit=node["next_tables"].get("__HIT__", base),
            next_on_miss=node["next_tables"].get("__MISS__", base),
            next_by_action=_frozen(following),
            base_default_next=base,
            source=where,
            profile=profile,
        )

    def _key_field(self, node: Json, table: Json) -> KeyField:
        match, target = node["match_type"], node["target"]
        if match == "valid":
            value: Data = ValidBit(HeaderRef(target))
            match = "exact"
        else:
            value = self._reader.data({"type": "field", "value": target}, table)
        width = value.width if isinstance(value, FieldValue) else 1
        if match not in ("exact", "lpm", "ternary", "range"):
            raise UnsupportedConstruct(f"match kind '{match}'", source_of(table))
        if match == "range" and width > 64:
            raise UnsupportedConstruct(f"a range match of {width} bits", source_of(table))
        mask = node.get("mask")
        name = node.get("name") or ".".join(target if isinstance(target, list) else [target])
        return KeyField(
            name, match, value, width, None if mask is None else expressions.hex_value(mask)
        )

    # Calculations

    def _calculation(self, node: Json) -> Calculation:
        if node["algo"] not in ALGORITHMS:
            raise UnsupportedConstruct(
                f"hash algorithm '{node['algo']}' ('{node['name']}')", self._place_of(node)
            )
        inputs = []
        for one in node["input"]:
            if one["type"] == "header":
                inputs.append(CalculationInput(None, 0, one["value"], False))
            elif one["type"] == "payload":
                inputs.append(CalculationInput(None, 0, None, True))
            else:
                varbit = expressions.parse_any(one, self._reader.scope())
                if isinstance(varbit, VarbitField):
                    inputs.append(CalculationInput(None, 0, None, False, varbit))
                    continue
                value = self._reader.data(one, node)
                width = value.width if isinstance(value, FieldValue) else one.get("bitwidth", 1)
                inputs.append(CalculationInput(value, width, None, False))
        return Calculation(node["name"], node["algo"], tuple(inputs))

    def _place_of(self, calculation: Json) -> Source | None:
        """Returns where a calculation is used, as p4c gives a position of the calculation itself
        only in a selector."""
        name, document = calculation["name"], self.document
        statements = [one for action in document["actions"] for one in action["primitives"]]
        called = {"type": "calculation", "value": name}
        users = [calculation, *(one for one in statements if called in one["parameters"])]
        users += [one for one in document["checksums"] if one["calculation"] == name]
        return next((place for place in map(source_of, users) if place is not None), None)

    def _checksum(self, node: Json) -> Checksum:
        if node["type"] != "generic":
            raise UnsupportedConstruct(f"checksum type '{node['type']}'", source_of(node))
        condition = node.get("if_cond")
        header, name = node["target"]
        return Checksum(
            node["name"],
            header,
            name,
            node["calculation"],
            node.get("verify", True),
            node.get("update", True),
            None if condition is None else self._reader.boolean(condition, node),
            source_of(node),
        )


def _frozen(mapping: dict[Any, Named]) -> MappingProxyType[Any, Named]:
    return MappingProxyType(mapping)


def _by_name(nodes: list[Json], read: Callable[[Json], Named]) -> MappingProxyType[str, Named]:
    return MappingProxyType({one["name"]: read(one) for one in nodes})


def _field_list(node: Json) -> FieldList:
    elements = []
    for one in node["elements"]:
        if one["type"] != "field":
            raise UnsupportedConstruct(f"'{one['type']}' in field list {node['id']}")
        elements.append((one["value"][0], one["value"][1]))
    return FieldList(node["id"], tuple(elements))


def _counter(node: Json) -> Counter:
    size = node.get("size", 0)
    check(0 <= size <= MOST_CELLS, f"counter '{node['name']}' has {size} cells")
    return Counter(node["name"], size, node.get("binding"))


def _register(node: Json) -> Register:
    name, size, width = node["name"], node["size"], node["bitwidth"]
    check(1 <= width <= MOST_BITS, f"register '{name}' has cells of {width} bits")
    check(0 <= size <= MOST_CELLS, f"register '{name}' has {size} cells")
    return Register(name, size, width)


def _values(data: list[str]) -> tuple[int, ...]:
    return tuple(expressions.hex_value(one) for one in data)


def _entry(node: Json) -> Entry:
    key: list[int | tuple[int, int]] = []
    for one in node["match_key"]:
        kind = one["match_type"]
        if kind == "valid":
            key.append(int(one["key"]))
        elif kind == "exact":
            key.append(expressions.hex_value(one["key"]))
        elif kind == "lpm":
            key.append((expressions.hex_value(one["key"]), one["prefix_length"]))
        elif kind == "ternary":
            key.append((expressions.hex_value(one["key"]), expressions.hex_value(one["mask"])))
        else:
            key.append((expressions.hex_value(one["start"]), expressions.hex_value(one["end"])))
    action = node["action_entry"]
    priority = _TOP_PRIORITY - int(node.get("priority", 1))
    return Entry(tuple(key), action["action_id"], _values(action["action_data"]), priority)
