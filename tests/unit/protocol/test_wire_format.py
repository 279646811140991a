# SPDX-License-Identifier: GPL-2.0-only
"""Tests that all descriptions of the aggregation header agree with ``protocol.header``."""

from __future__ import annotations

import json
import re

import pytest

from protocol.header import HEADER, PORT, SERVER_PORTS, VERSION, Flag, Op
from protocol.scapy_layer import Aggregation
from specs.p4program import BUILDS, SOURCES, Build
from tests.conftest import ROOT

# Name, bits and sign of each field in order.
Fields = list[tuple[str, int, bool]]

P4_HEADERS = (SOURCES / "headers.p4").read_text()
C_HEADER = (ROOT / "hosts" / "native" / "packet.h").read_text()
C_TYPES = {"uint8_t": (8, False), "int8_t": (8, True), "uint16_t": (16, False),
           "uint32_t": (32, False)}  # fmt: skip


def numpy_fields() -> Fields:
    found = []
    for name in HEADER.names or ():
        kind = HEADER[name]
        found.append((name, 8 * kind.itemsize, kind.kind == "i"))
    return found


def bytewise(fields: Fields) -> Fields:
    """Merges version and op, which share a byte."""
    (version, *_), (op, *_), *others = fields
    assert (version, op) == ("version", "op")
    assert fields[0][1] == fields[1][1] == 4
    return [("version_op", 8, False), *others]


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_the_compiled_program_parses_the_same_header(build: Build) -> None:
    program = json.loads(build.files()[0].read_text())
    (found,) = [one for one in program["header_types"] if one["name"] == "aggregation_h"]
    assert bytewise([tuple(field) for field in found["fields"]]) == numpy_fields()


def test_hosts_c_code_reads_the_same_header() -> None:
    body = re.search(r"struct header \{(.*?)\}", C_HEADER, re.S)
    assert body is not None
    found = [
        (name, *C_TYPES[kind])
        for kind, names in re.findall(r"(\w+) ([\w, ]+);", body[1])
        for name in names.split(", ")
    ]
    assert found == numpy_fields()


def test_scapy_and_wireshark_show_the_same_header() -> None:
    fields = [field for field in Aggregation.fields_desc if field.name not in ("values", "floats")]
    sizes = [(one.name, getattr(one, "size", 8 * one.sz)) for one in fields]
    assert (
        bytewise([(name, int(bits), False) for name, bits in sizes])[1:]
        == [(name, bits, False) for name, bits, _ in numpy_fields()][1:]
    )
    dissector = (ROOT / "protocol" / "rackhub.lua").read_text()
    shown = re.findall(r'ProtoField\.u?int(\d+)\("rackhub\.(\w+)"', dissector)
    assert [
        (name, int(bits)) for bits, name in shown if name not in ("version", "op", "values")
    ] == [(name, bits) for name, bits, _ in numpy_fields()[1:]]


@pytest.mark.parametrize(
    ("text", "pattern"),
    [(P4_HEADERS, r"const bit<\d+> (\w+) = (\w+);"), (C_HEADER, r"\b([A-Z]+) = (\w+)")],
    ids=["P4", "C"],
)
def test_constants_are_the_same(text: str, pattern: str) -> None:
    declared = {name: int(value, 0) for name, value in re.findall(pattern, text)}
    expected: dict[str, int] = {"VERSION": VERSION, **Op.__members__, **Flag.__members__}
    if text is P4_HEADERS:
        expected |= {"SERVER_PORTS": SERVER_PORTS.start, "AGGREGATION_PORT": PORT}
        expected |= {
            "SERVER_PORTS_MASK": 0x10000 - len(SERVER_PORTS),
            "AGGREGATION_BYTES": HEADER.itemsize,
        }
        assert expected.keys() <= declared.keys()
    shared = declared.keys() & expected.keys()
    assert {name: declared[name] for name in shared} == {name: expected[name] for name in shared}
    assert len(shared) > 8
