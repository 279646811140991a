# SPDX-License-Identifier: Apache-2.0
"""Tests loading of BMv2 programs, and errors with their source location."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switch.codegen import generate
from switch.loader import load_program, read_program
from switch.program.errors import ProgramError, UnsupportedConstruct
from switch.program.expressions import Binary, Const, FieldValue, HeaderRef
from switch.program.value_ranges import value_range
from tests.p4 import HERE


def document(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text())


def test_tables_keys_and_actions() -> None:
    program = load_program(HERE / "matches.json")
    table = program.tables["Enter.lpm_table"]
    assert [(one.name, one.match, one.width) for one in table.key] == [
        ("hdr.query.c", "exact", 4),
        ("hdr.query.d", "lpm", 128),
    ]
    assert (table.match, table.max_size, table.takes_priority) == ("lpm", 64, False)
    action = program.action_named("Enter.lpm_table", "Enter.longest")
    assert [(one.name, one.width) for one in action.parameters] == [("v", 8)]
    assert program.tables["Enter.fixed_table"].entries[0].key == ((0x123, 0xFFF), (0, 0))


def test_registers_and_counters() -> None:
    program = load_program(HERE / "state.json")
    sizes = {one.name: (one.size, one.width) for one in program.registers.values()}
    assert sizes["Enter.wide"] == (8, 72)
    assert program.counters["Enter.seen"].binding is None


def test_a_construct_is_refused_with_its_place() -> None:
    changed = document("metered")
    meter = next(one for one in changed["meter_arrays"] if one["name"] == "Enter.packets")
    meter["rate_count"] = 3
    with pytest.raises(
        UnsupportedConstruct, match=r"metered\.p4\(36\): meter 'Enter\.packets'"
    ) as e:
        read_program(changed)
    assert e.value.construct == "meter 'Enter.packets' of 3 rates and packets"
    assert e.value.where == "metered.p4(36)"


@pytest.mark.parametrize(
    ("name", "path", "place"),
    [
        ("state", ["calculations", 0], r"state\.p4\(45\): hash algorithm 'random'"),
        ("checksums", ["calculations", 0], r"checksums\.p4\(\d+\): hash algorithm 'random'"),
        ("profiles", ["pipelines", 1, "action_profiles", 0, "selector"],
         r"profiles\.p4\(70\): hash algorithm 'random' \('Leave\.last"),
    ],
)  # fmt: skip
def test_an_unknown_hash_algorithm_is_refused_where_it_is_used(
    name: str, path: list[Any], place: str
) -> None:
    with pytest.raises(UnsupportedConstruct, match=place):
        read_program(change([*path, "algo"], "random", name))


def test_meters_digests_and_ageing() -> None:
    program = load_program(HERE / "learning.json")
    table = program.tables["Enter.sources"]
    assert (table.ages, table.meter) == (True, "Enter.volume")
    meters = {one.name: (one.tokens, one.size, one.binding) for one in program.meters.values()}
    assert meters == {
        "Enter.arrivals": ("packets", 512, None),
        "Enter.volume": ("bytes", 64, "Enter.sources"),
    }
    learned = {
        one.name: [field.width for field in one.elements] for one in program.learn_lists.values()
    }
    assert learned == {"learned_t": [48, 9, 1], "odd_t": [8, 72, 16]}


def test_an_unknown_primitive_is_refused_with_its_place() -> None:
    changed = document("state")
    primitive = next(one for action in changed["actions"] for one in action["primitives"])
    primitive["op"] = "teleport"
    with pytest.raises(UnsupportedConstruct, match=r"state\.p4\(\d+\): primitive 'teleport'"):
        read_program(changed)


def change(path: list[Any], value: Any, name: str = "matches") -> Any:
    changed = copy.deepcopy(document(name))
    node = changed
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["extern_instances"], [{"name": "x"}], "extern object 'x'"),
        (["header_types", 2, "fields", 0, 1], "*", "varbit field"),
        (["pipelines", 0, "tables", 1, "type"], "indexed", "of type 'indexed'"),
    ],
)
def test_refusals_name_the_construct(path: list[Any], value: Any, message: str) -> None:
    with pytest.raises(UnsupportedConstruct, match=message):
        read_program(change(path, value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "not a JSON document"),
        ("[" * 100_000, "not a JSON document"),
        ("[]", "not a BMv2 program"),
        ('{"__meta__": 3}', "inconsistent program: AttributeError"),
        ('{"__meta__": {"version": [1, 0]}}', r"format 1\.0, need 2"),
        ('{"__meta__": {"version": [2, 23]}}', "inconsistent program: KeyError"),
    ],
)
def test_files_that_are_no_programs(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "program.json"
    path.write_text(text)
    with pytest.raises(ProgramError, match=message) as error:
        load_program(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["register_arrays", 0, "size"], 1 << 61, r"register 'Enter\.wide' has 2305\d+ cells"),
        (["register_arrays", 0, "size"], -1, "has -1 cells"),
        (["register_arrays", 0, "bitwidth"], 1 << 60, "cells of 1152921504606846976 bits"),
        (["counter_arrays", 0, "size"], (1 << 64) - 1, "has 18446744073709551615 cells"),
        (["header_types", 2, "fields", 0, 1], 0, "has 0 bits"),
        (["header_types", 2, "fields", 0, 1], 1 << 63, "has 9223372036854775808 bits"),
    ],
)
def test_sizes_that_nothing_can_have_are_refused(path: list[Any], value: int, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        read_program(change(path, value, "state"))


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a document."""
    if path:
        yield path
    if isinstance(node, dict | list):
        for step, inner in node.items() if isinstance(node, dict) else enumerate(node):
            if step != "source_info":
                yield from places(inner, (*path, step))


@pytest.mark.parametrize("name", ["parsing", "replication", "state", "router", "matches"])
def test_a_document_that_was_tampered_with_is_a_program_or_refused(name: str) -> None:
    """Something removed, replaced by something else of it, or by an absurd value."""
    draw = random.Random(name)
    original = document(name)
    everywhere = list(places(original))
    junk = [None, True, -1, 0, 2**31, 2**70, 1e300, "", "0x", "-0x1", [], {}, [[]], {"type": "x"}]
    refused = 0
    for _ in range(60):
        changed = copy.deepcopy(original)
        *way, last = draw.choice(everywhere)
        node = changed
        for step in way:
            node = node[step]
        other = original
        for step in draw.choice(everywhere):
            other = other[step]
        node[last] = draw.choice([*junk, *[other] * 5])
        if isinstance(node, dict) and draw.random() < 0.3:
            del node[last]
        try:
            generate(read_program(changed, "tampered"))
        except ProgramError:
            refused += 1
    assert refused > 10


def field(width: int, signed: bool = False) -> FieldValue:
    return FieldValue(HeaderRef("h"), "f", width, signed)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (Binary("+", field(8), field(8)), (0, 510)),
        (Binary("-", field(8), field(4)), (-15, 255)),
        (Binary("*", field(8, True), field(8, True)), (-128 * 127, 128 * 128)),
        (Binary("&", Binary("-", field(8), field(8)), Const(15)), (0, 15)),
        (Binary(">>", field(8, True), Const(1)), (-64, 63)),
        (Binary("<<", field(4), field(2)), (0, 120)),
        (Binary("two_comp_mod", field(32), Const(8)), (-128, 127)),
        (Binary("usat_cast", field(32), Const(8)), (0, 255)),
    ],
)
def test_ranges_hold_every_value(expression: Binary, expected: tuple[int, int]) -> None:
    assert value_range(expression) == expected


def test_what_only_the_generator_can_refuse_has_its_place_too() -> None:
    changed = document("state")
    primitive = next(
        one
        for action in changed["actions"]
        for one in action["primitives"]
        if one["op"] == "register_write"
    )
    primitive["parameters"][1] = {
        "type": "expression",
        "value": {
            "op": "<<",
            "left": {"type": "hexstr", "value": "0x1"},
            "right": {"type": "field", "value": ["request", "value"]},
        },
    }
    with pytest.raises(UnsupportedConstruct, match=r"state\.p4\(\d+\): a shift by a value of more"):
        generate(read_program(changed))


def test_a_header_that_no_length_of_its_varbit_field_makes_whole_bytes_is_refused() -> None:
    changed = document("varbits")
    [text] = [one for one in changed["header_types"] if one["name"] == "text_h"]
    text["fields"][0][1] = 4
    with pytest.raises(UnsupportedConstruct, match="'text_h', which is never whole bytes"):
        read_program(changed)


def test_an_order_of_varbit_fields_is_refused_with_its_place() -> None:
    changed = document("options")
    [condition] = [
        one
        for pipeline in changed["pipelines"]
        for one in pipeline["conditionals"]
        if one["source_info"]["source_fragment"] == "hdr.ip.what == 2"
    ]
    options = {"type": "field", "value": ["ip", "options"]}
    condition["expression"]["value"] = {"op": "<", "left": options, "right": options}
    message = r"options\.p4\(\d+\): operator '<' between VarbitField, VarbitField"
    with pytest.raises(UnsupportedConstruct, match=message):
        read_program(changed)
