# SPDX-License-Identifier: Apache-2.0
"""Tests that a P4 program's names are known in one place, and that another program can be added."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controller.p4rt import dataplane
from controller.p4rt.dataplane import DataPlane
from controller.p4rt.entries import Entity, EntryError
from controller.p4rt.program import NodeKey, Program, Uplink
from specs.p4program import USUAL

KEY = NodeKey(job=3, epoch=4, stream=5, node=6)
UP = Uplink(port=7, mac=8, parent=9, sender=10, address=11)
RENAMED = {
    "IngressPipeline.forwarding.routes": "IngressPipeline.router.lpm",
    "IngressPipeline.aggregation.nodes": "IngressPipeline.adder.groups",
    "IngressPipeline.aggregation.slots.state": "IngressPipeline.adder.state",
    "IngressPipeline.outcomes": "IngressPipeline.statistics",
}


class Renamed(Program):
    """A data plane whose tables have other names."""

    name = "renamed.p4"
    routes = "router.lpm"
    nodes = "adder.groups"
    slot_state = "adder.state"
    outcomes = "statistics"


def built(tmp_path: Path, names: dict[str, str]) -> tuple[Path, Path]:
    program, p4info = USUAL.files()
    text = p4info.read_text()
    for old, new in names.items():
        assert f'"{old}"' in text
        text = text.replace(f'"{old}"', f'"{new}"')
    changed = tmp_path / "renamed.p4info.txtpb"
    changed.write_text(text)
    return program, changed


def entries(program: Program) -> list[Entity]:
    return [
        program.route(address=0x0A000000, length=8, port=1, mac=2),
        program.node(KEY, base=64, window=8, children=3, group=12, up=None),
        program.node(KEY, base=64, window=8, children=3, group=12, up=UP),
        program.child(KEY, sender=1, port=2, address=3, workers=4, is_switch=True),
        *program.job_tables(),
    ]


def test_a_program_with_other_names_is_one_class_and_a_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataplane, "PROGRAMS", (*dataplane.PROGRAMS, Renamed))
    usual = DataPlane.load(*USUAL.files())
    renamed = DataPlane.load(*built(tmp_path, RENAMED))
    assert type(usual.program) is Program
    assert type(renamed.program) is Renamed
    # Names do not go into entries, the numbers of the p4info do.
    assert entries(renamed.program) == entries(usual.program)
    assert (renamed.slots, renamed.lanes) == (usual.slots, usual.lanes)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"IngressPipeline.forwarding.routes"', '"IngressPipeline.fib"', "no table 'forwarding.ro"),
        (
            '"EgressPipeline.receivers.address"',
            '"EgressPipeline.to"',
            "no action of Egress",
        ),
        ('"parent_mac"', '"up_mac"', "inner: missing up_mac; unknown parent_mac; parameters are"),
        ('"IngressPipeline.outcomes"', '"IngressPipeline.seen"', "no counter 'outcomes'"),
        (
            '"IngressPipeline.aggregation.slots.state"',
            '"x"',
            "no register 'aggregation.slots",
        ),
        ('"ingress_port"', '"from"', "source_guard.sources: missing from; unknown ingress_port"),
    ],
)
def test_a_missing_name_is_an_error_that_names_it_and_the_file(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    with pytest.raises(EntryError, match=re.escape(says)) as refused:
        DataPlane.load(*built(tmp_path, {old[1:-1]: new[1:-1]}))
    assert str(refused.value).startswith(f"{tmp_path / 'renamed.p4info.txtpb'}: ")
