# SPDX-License-Identifier: Apache-2.0
"""Rewrites programs so that documented faults of BMv2 do not show.

The faults are those of docs/reference/bmv2-differences.md. A rewritten program means the same, or
lacks what BMv2 takes for something else. A difference that both targets do not have with it is
explained by the rule of that name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.packet.differential.case import Case

SIGNS = "BMv2 reads a negative number of a register as a positive one"
PREFIX = "BMv2 takes a prefix of a key as if that were whole bytes"

_Json = dict[str, Any]


def rewritten(case: Case) -> Iterator[tuple[str, Case]]:
    """Rules that may explain differences, each with the case for it; one builds on the others."""
    program = json.loads(case.program)
    if _extend_signs(program):
        yield SIGNS, replace(case, program=json.dumps(program).encode())
    kept = [one for one in case.updates if not _has_ragged_prefix(case, one.entity.table_entry)]
    if _drop_ragged_prefixes(program) or len(kept) < len(case.updates):
        yield PREFIX, replace(case, program=json.dumps(program).encode(), updates=kept)


def key_widths(case: Case) -> dict[tuple[int, int], int]:
    """Returns the bits of each match field, by table id and field id; 0 where P4Info has none."""
    return {
        (table.preamble.id, field.id): field.bitwidth
        for table in case.p4info.message.tables
        for field in table.match_fields
    }


def _has_ragged_prefix(case: Case, entry: p4rt.TableEntry) -> bool:
    """True if an entry has a prefix of a key that is not whole bytes."""
    widths = key_widths(case)
    return any(
        one.HasField("lpm") and widths[entry.table_id, one.field_id] % 8 for one in entry.match
    )


def _extend_signs(program: _Json) -> bool:
    """Extends the sign of what is read from registers into signed fields; False: there is none."""
    widths = {
        (header["name"], name): width
        for header in program["headers"]
        for name, width, *signed in _fields(program, header["header_type"])
        if any(signed) and width != "*"
    }
    found = False
    for action in program["actions"]:
        primitives = []
        for one in action["primitives"]:
            primitives.append(one)
            into = one["parameters"][0] if one["op"] == "register_read" else {"type": ""}
            if into["type"] == "field" and tuple(into["value"]) in widths:
                width = {"type": "hexstr", "value": hex(widths[tuple(into["value"])])}
                value = {"op": "two_comp_mod", "left": into, "right": width}
                extended = {"type": "expression", "value": {"type": "expression", "value": value}}
                primitives.append({"op": "assign", "parameters": [into, extended]})
                found = True
        action["primitives"] = primitives
    return found


def _drop_ragged_prefixes(program: _Json) -> bool:
    """Removes constant entries with a prefix of a key that is not whole bytes; False: none has."""
    found = False
    for pipeline in program["pipelines"]:
        for table in pipeline["tables"]:
            ragged = [_width(program, one["target"]) % 8 != 0 for one in table["key"]]
            entries = table.get("entries", [])
            kept = [
                one
                for one in entries
                if not any(
                    part["match_type"] == "lpm" and odd
                    for part, odd in zip(one["match_key"], ragged, strict=True)
                )
            ]
            found = found or len(kept) < len(entries)
            if entries:
                table["entries"] = kept
    return found


def _fields(program: _Json, header_type: str) -> list[list[Any]]:
    found: list[list[Any]] = next(
        one["fields"] for one in program["header_types"] if one["name"] == header_type
    )
    return found


def _width(program: _Json, target: list[str]) -> int:
    """Bits of a key's field; 8 of what is no field of a header: validity, or one of a stack."""
    header = next((one for one in program["headers"] if one["name"] == target[0]), None)
    if header is None:
        return 8
    widths = {name: width for name, width, *_ in _fields(program, header["header_type"])}
    return int(widths.get(target[1], 8))
