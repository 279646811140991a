# SPDX-License-Identifier: Apache-2.0
"""Tests placement words: they determine servers, tree and optimizer; contradictions are named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from planner.placement_table import needs
from specs import placements
from specs.jobfile import JobFileError, parse
from specs.p4program import SOURCES
from specs.placements import Hosts, Kind
from testbed import preflight
from testbed.preflight import JobPlan
from testbed.program import read_program
from tests.conftest import ROOT
from topologies.model.addressing import Addressing
from topologies.model.spec import load as load_topology
from topologies.model.spec import read
from topologies.model.topology import Topology

SERVER_RACK = ROOT / "topologies" / "server-rack.yaml"
WORKERS = tuple(f"w{n}" for n in range(8))
NAMES = ", ".join(kind.name for kind in placements.KINDS)
JOB = "name: x\niterations: 5\nbatch: 24\n"
BUILD = SOURCES / "build"
PLANE = read_program(BUILD / "aggregation.json", BUILD / "aggregation.p4info.txtpb")


def planned(tmp_path: Path, text: str) -> JobPlan:
    """What the job would get on server-rack.yaml."""
    file = tmp_path / "job.yaml"
    file.write_text(JOB + text)
    (plan,) = preflight.check(read(SERVER_RACK), [file], PLANE, "embedded").jobs
    return plan


@pytest.mark.parametrize(
    ("text", "servers", "tree", "steps"),
    [
        ("tree: tor", ("s0", "s1"), "tor", "workers"),
        ("placement: cc", ("w0",), "none", "workers"),
        ("placement: cs", WORKERS, "none", "workers"),
        ("placement: ncc", ("s0",), "none", "workers"),
        ("placement: ncs\noptimizer: {at: servers}", ("s0", "s1"), "none", "servers"),
        ("placement: inc", ("s0", "s1"), "two-level", "workers"),
        ("placement: inc\ntree: core", ("s0", "s1"), "core", "workers"),
        ("placement: inc-server", ("s0",), "two-level-server", "servers"),
        ("placement: inc-server\ntree: core", ("s0",), "core-server", "servers"),
        ("placement: inc-server\ntree: tor", ("s0",), "tor", "servers"),
        (
            "placement: {kind: inc-server, servers: all}",
            ("s0", "s1"),
            "two-level-server",
            "servers",
        ),
        ("placement: {kind: cs, workers: [w1, w2, w5]}", ("w1", "w2", "w5"), "none", "workers"),
        ("placement: {kind: cc, servers: [w3]}", ("w3",), "none", "workers"),
        ("placement: {kind: ncc, servers: [s1]}", ("s1",), "none", "workers"),
    ],
)
def test_a_word_stands_for(
    tmp_path: Path, text: str, servers: tuple[str, ...], tree: str, steps: str
) -> None:
    plan = planned(tmp_path, text)
    assert plan.placement.servers == servers
    assert (plan.file.spec.tree, plan.file.spec.optimizer.at) == (tree, steps)
    # That is what the tree really is, not only what it is called.
    root = plan.trees[0].root
    assert (root.switch is None) == tree.endswith(("none", "server", "tor"))
    assert bool(plan.slots) == (tree != "none")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("placement: ncs\ntree: core",
         "job.yaml:5: tree: core does not go with placement ncs (non-colocated, sharded:"
         " servers at hosts of their own); allowed: none, or placement inc or inc-server"),
        ("placement: inc\ntree: none", "job.yaml:5: tree: none does not go with placement inc"),
        ("tree: tor\nplacement: inc", "job.yaml:4: tree: tor does not go with placement inc"
         " (switches sum, and one is the root); allowed: two-level, core, or placement inc-server"),
        ("placement: inc\noptimizer:\n  at: servers",
         "job.yaml:6: optimizer.at: with placement inc (switches sum, and one is the root)"
         " steps are taken at workers; allowed: that, or placement cc, cs, ncc, ncs, inc-server"),
        ("placement: inc-server\noptimizer: {at: workers}",
         "job.yaml:5: optimizer.at: with placement inc-server"),
        ("placement: ring", f"job.yaml:4: placement: 'ring' should be one of {NAMES}, or a group of"
         " fields (kind, workers, servers, spares)"),
        ("placement: {kind: ring}", "job.yaml:4: placement.kind: should be cc, cs,"),
        ("placement: {kind: cc, servers: [w0, w1]}",
         "job.yaml:4: placement.servers: 2 servers, and placement cc (colocated, central: one"
         " server, at a worker's host) has one; allowed: one of w0..w7"),
        ("placement: {kind: ncc, servers: all}",
         "job.yaml:4: placement.servers: 2 servers, and placement ncc"),
        ("placement: {kind: cs, servers: [s0]}",
         "job.yaml:4: placement.servers[0]: placement cs has servers on hosts of workers of the"
         " job, not on 's0'; allowed: w0..w7"),
        ("placement: {kind: cs, workers: [w0, w1, w2], servers: [w0, w3]}",
         "job.yaml:4: placement.servers[1]: placement cs has servers on hosts of workers of the"
         " job, not on 'w3'; allowed: w0..w2"),
        ("tree: none\nplacement: {spares: [s0, s1]}",
         "job.yaml:5: placement.spares: leave no server that has slices from the start"),
        ("tree: none\nplacement: {servers: [s0, s1], spares: [s1]}",
         "job.yaml:5: placement.spares[0]: s1 is one of `servers`, too; leave one out"),
        ("tree: none\nplacement: {spares: [s1, s1]}",
         "job.yaml:5: placement.spares[1]: s1 is named twice"),
        ("tree: none\nplacement: {spares: [s2]}",
         "job.yaml:5: placement.spares[0]: server-rack has no server 's2'; allowed: s0, s1"),
        ("placement: {kind: ncc, spares: [s1]}", "job.yaml:4: placement.spares: placement ncc (n"),
        ("placement: {spares: [s1]}",
         "job.yaml:4: placement.spares: is about what servers sum, and the root of tree two-l"),
        ("placement: {servers: [w0]}", "job.yaml:4: placement.servers[0]: server-rack has no server"
         " 'w0'; allowed: s0, s1"),
    ],
)  # fmt: skip
def test_contradictions_are_refused_by_file_line_and_field(text: str, says: str) -> None:
    with pytest.raises(JobFileError) as caught:
        parse(JOB + text, "job.yaml").place(load_topology(SERVER_RACK))
    (line,) = str(caught.value).splitlines()
    assert line.startswith(says)


def test_spare_servers_are_servers_of_the_job() -> None:
    file = parse(JOB + "placement: {kind: ncs, spares: [s0]}")
    placement = file.place(load_topology(SERVER_RACK))
    assert (placement.servers, placement.spares) == (("s1", "s0"), ("s0",))
    assert placement.serving.servers == ("s1",)


class Pair(Kind):
    """Servers on the hosts of the first and the last worker."""

    def hosts(self, topology: Topology, workers: Sequence[str]) -> Hosts:
        return Hosts(tuple(workers), (workers[0], workers[-1]))


def test_another_placement_is_one_class_and_a_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair("pair", "two of the workers", lambda workers, _: workers, "N", {"none": "none"},
                colocated=True)  # fmt: skip
    monkeypatch.setattr(placements, "KINDS", (*placements.KINDS, pair))
    plan = planned(tmp_path, "placement: pair\n")
    assert (plan.placement.servers, plan.file.spec.tree) == (("w0", "w7"), "none")
    with pytest.raises(JobFileError, match=f"one of {NAMES}, pair, or"):
        parse(JOB + "placement: ring\n", "job.yaml")
    topology = load_topology(SERVER_RACK)
    found = list(needs(Addressing(topology), [1 << 18], PLANE, WORKERS, None))
    (need,) = [one for one in found if one.placement == "pair"]
    # Of 8 copies of half the tensor, each server's own worker sends nothing over its link.
    assert need.servers == ("w0", "w7")
    assert need.bottleneck == need.server


def test_documents_list_the_registered_placements() -> None:
    text = (ROOT / "docs" / "reference" / "files.md").read_text()
    table = text.split("| `placement` | servers |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `([\w-]+)`", table, re.M) == [kind.name for kind in placements.KINDS]
