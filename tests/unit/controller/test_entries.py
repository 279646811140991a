# SPDX-License-Identifier: Apache-2.0
"""Tests entries by name against the shipped program's p4info."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.p4rt.dataplane import DataPlane
from controller.p4rt.entries import EntryError, P4Info, bare, clone_session, multicast_group, packed

BUILD = Path(__file__).parents[3] / "p4src" / "build"
INFO = P4Info.load(BUILD / "aggregation.p4info.txtpb")


@given(st.integers(1, 128).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, 2**n - 1))))
def test_values_are_the_shortest_strings(case: tuple[int, int]) -> None:
    bits, value = case
    text = packed(value, bits)
    assert int.from_bytes(text, "big") == value
    assert len(text) == 1 or text[0] != 0


def test_an_entry_has_ids_of_the_program_and_its_values() -> None:
    entity = INFO.table_entry(
        "forwarding.routes", {"destination": (0x0A000001, 32)}, "forward", {"port": 3, "mac": 2**40}
    )
    table = INFO.table("forwarding.routes")
    assert entity.table_entry.table_id == table.preamble.id
    (match,) = entity.table_entry.match
    assert (match.lpm.value, match.lpm.prefix_len) == (b"\x0a\x00\x00\x01", 32)
    port, mac = entity.table_entry.action.action.params
    assert (port.value, mac.value) == (b"\x03", b"\x01" + bytes(5))


def test_a_dont_care_match_is_left_out() -> None:
    match = {"ingress_port": 3, "source": (0, 0)}
    entity = INFO.table_entry("source_guard.sources", match, "deny")
    assert [field.exact.value for field in entity.table_entry.match] == [b"\x03"]


@pytest.mark.parametrize(
    ("table", "match", "action", "parameters", "says"),
    [
        ("routing", {}, "forward", {}, "no table 'routing'; there are "),
        ("children", {}, "worker", {}, "table 'children' could be any of "),
        ("routes", {}, "permit", {}, "no action of .* 'permit'; there are .*forward, .*no_route"),
        ("routes", {"dst": (0, 0)}, "no_route", {}, "unknown dst; match fields are destination"),
        ("routes", {"destination": 1}, "no_route", {}, "a pair of numbers, not 1"),
        ("routes", {"destination": (1, 31)}, "no_route", {}, "outside of the prefix"),
        ("routes", {"destination": (0, 33)}, "no_route", {}, "prefix length 33, allowed 0 to 32"),
        ("routes", {}, "forward", {"port": 1}, "missing mac; parameters are port, mac"),
        ("routes", {}, "forward", {"port": 512, "mac": 0}, r"port: 512 does not fit bit<9>"),
        ("thresholds", {}, "mark_above", {"depth": 1}, "missing egress_port"),
    ],
)
def test_wrong_entries_say_what_there_is(
    table: str,
    match: dict[str, int | tuple[int, int]],
    action: str,
    parameters: dict[str, int],
    says: str,
) -> None:
    with pytest.raises(EntryError, match=says):
        INFO.table_entry(table, match, action, parameters)


def test_a_deletion_names_the_entity_and_nothing_more() -> None:
    entry = INFO.table_entry("thresholds", {"egress_port": 1}, "mark_above", {"depth": 7})
    assert bare(entry) == INFO.table_entry("thresholds", {"egress_port": 1})
    assert bare(multicast_group(9, [(1, 1), (2, 2)])) == multicast_group(9, [])
    assert bare(clone_session(9, [(1, 1)])) == clone_session(9, [])
    with pytest.raises(EntryError, match="multicast group 0: ids are 1 to 65535"):
        multicast_group(0, [])


@pytest.mark.parametrize(
    ("build", "lanes", "packet", "chunks_per_slice"),
    [("aggregation", 256, 1084, 32), ("aggregation_jumbo", 2048, 8252, 4)],
)
def test_sizes_of_a_build(build: str, lanes: int, packet: int, chunks_per_slice: int) -> None:
    plane = DataPlane.load(BUILD / f"{build}.json", BUILD / f"{build}.p4info.txtpb")
    assert plane.lanes == lanes
    assert plane.packet_bytes == packet
    assert plane.frame_bytes == packet + 14
    assert plane.chunks_per_slice() == chunks_per_slice
    assert plane.slots >= 1024


def test_a_file_that_is_no_p4info(tmp_path: Path) -> None:
    path = tmp_path / "x.txtpb"
    path.write_text("tables { nonsense: 1 }")
    with pytest.raises(EntryError, match=r"x\.txtpb is not a p4info text file"):
        P4Info.load(path)
