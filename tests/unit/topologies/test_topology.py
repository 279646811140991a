# SPDX-License-Identifier: Apache-2.0
"""Tests topology files: values, and errors with file, line and field."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from specs.faultfile import parse as parse_faults
from topologies.model.spec import TopologyError, load, parse, read

SHIPPED = Path(__file__).parents[3] / "topologies"


def problems(text: str, tmp_path: Path) -> list[str]:
    """What is wrong with a file, each without the directory."""
    path = tmp_path / "bad.yaml"
    path.write_text(dedent(text))
    with pytest.raises(TopologyError) as caught:
        load(path)
    return [line.replace(f"{tmp_path}/", "") for line in str(caught.value).splitlines()]


@pytest.mark.parametrize(
    ("name", "racks", "workers", "servers", "cores", "links"),
    [
        ("one-rack", 1, 4, 1, 0, 5),
        ("two-racks", 2, 8, 2, 1, 12),
        ("four-racks-two-cores", 4, 16, 4, 2, 28),
    ],
)
def test_shipped_files(
    name: str, racks: int, workers: int, servers: int, cores: int, links: int
) -> None:
    topology = load(SHIPPED / f"{name}.yaml")
    assert topology.name == name
    assert topology.racks == racks
    assert [node.name for node in topology.workers] == [f"w{i}" for i in range(workers)]
    assert [node.name for node in topology.servers] == [f"s{i}" for i in range(servers)]
    assert len(topology.cores) == cores
    assert len(topology.links) == links
    assert not topology.tls


def test_units_defaults_and_overrides_of_one_direction() -> None:
    topology = parse(
        dedent("""
        name: mixed
        defaults: {rate: 1.5 Gbit/s, delay: 250 us, queue_bytes: 64 KiB, mtu: 9000, loss: 1 %}
        racks: [{workers: 1, servers: 1}, {workers: 1}]
        cores: [2, 1]
        uplinks: {rate: 10 Gbit/s}
        links:
          - {from: tor1, to: core0, rate: 5 Mbit/s, reorder: 0.25}
          - {ends: [tor0, w0], corrupt: 0.5}
        """)
    )
    link = {(item.a, item.b): item for item in topology.links}
    assert link["w0", "tor0"].forward.rate == 1_500_000_000
    assert link["w0", "tor0"].forward.delay == pytest.approx(250e-6)
    assert link["w0", "tor0"].forward.corrupt == link["w0", "tor0"].backward.corrupt == 0.5
    assert link["w1", "tor1"].forward.ecn_bytes == 32 * 1024  # half the queue unless given
    assert link["tor1", "core0"].forward.rate == 5_000_000
    assert link["tor1", "core0"].forward.reorder == 0.25
    assert link["tor1", "core0"].backward.rate == 10_000_000_000
    assert link["tor1", "core0"].backward.reorder == 0
    assert all(item.forward.loss == 0.01 for item in topology.links)
    # Two levels of cores: ToRs to both of the first, those to the one of the second.
    assert {("core0", "core2"), ("core1", "core2")} <= set(link)
    assert len([pair for pair in link if pair[0].startswith("tor")]) == 4


def test_a_server_may_have_several_links() -> None:
    topology = parse(
        dedent("""
        name: wide
        racks: [{workers: 1, servers: 1}, {workers: 1}]
        cores: 1
        links: [{ends: [s0, tor1], add: true, rate: 1 Gbit/s}, {ends: [s0, tor0], add: true}]
        """)
    )
    assert [link.b for link in topology.links_of("s0")] == ["tor0", "tor1", "tor0"]
    assert [link.forward.rate for link in topology.links_of("s0")] == [20e6, 1e9, 20e6]


def test_every_problem_is_named_with_file_line_and_field(tmp_path: Path) -> None:
    found = problems(
        """\
        name: x
        racks:
          - {workers: 4, server: 1}
          - {workers: four}
        defaults: {rate: 10 parsecs, loss: 2}
        uplinks:
          foo: 1
        links:
          - {ends: [w1]}
        """,
        tmp_path,
    )
    allowed = "workers, servers, server_cores, count"
    wrong = f"bad.yaml:3: racks[0].server: unknown field; allowed here: {allowed}"
    assert found[0] == f"{wrong}; did you mean servers?"
    assert [line.split(": ")[:2] for line in found[1:]] == [
        ["bad.yaml:4", "racks[1].workers"],
        ["bad.yaml:5", "defaults.loss"],
        ["bad.yaml:5", "defaults.rate"],
        ["bad.yaml:7", "uplinks.foo"],
        ["bad.yaml:9", "links[0].ends"],
    ]
    assert found[2].endswith(
        "2 is out of range; allowed: 0 to 0.99, which is 99 %; 2 percent are written 2 % or 0.02"
    )
    assert "20 Mbit/s" in found[3]


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("links: [{ends: [w9, tor0]}]", "links[0].ends[0]", "no node 'w9'; nodes are w0..w3"),
        ("links: [{ends: [w1, s0]}]", "links[0]", "w1 and s0 are not linked; w1 has tor0"),
        ("links: [{from: w1}]", "links[0]", "`from: a` and `to: b`"),
        ("links: [{ends: [w1, tor0], add: true}]", "links[0].add", "a server to a ToR"),
        ("defaults: {queue_bytes: 1000}", "defaults.queue_bytes", "at least 1514 B"),
        ("defaults: {ecn_bytes: 1 MiB}", "defaults.ecn_bytes", "0 (never) to that"),
        ("cores: [1, 0]", "cores[1]", "should be 1 to 1000, not 0"),
        ("cores: [{racks: 2}]", "cores[0].cores", "required, but not given"),
        ("cores: [{racks: 0, cores: 1}]", "cores[0].racks", "should be at least 1, not 0"),
        (
            "cores: [{pods: 2, cores: 1}]",
            "cores[0].pods",
            "unknown field; allowed here: racks, cores",
        ),
        ("tls: maybe", "tls", "should be true or false, not 'maybe'"),
        ("cores: one", "cores", "'one' should be a number of cores, like 2, or a list of them"),
        ("cores: [x]", "cores[0]", "should be a whole number, not 'x'"),
        ("cores: [1, 1, 1, 1, 1]", "cores", "takes up to 4, has 5"),
        ("uplinks: {rate: -20 Mbit/s}", "uplinks.rate", "'-20 Mbit/s' is negative"),
        ("uplinks: {rate: 5 bit/s}", "uplinks.rate", "allowed: 1 kbit/s to 1 Tbit/s"),
        ("links: 3", "links", "should be a list, not 3"),
        ("links: [{ends: [w1]}]", "links[0].ends", "needs at least 2, has 1"),
        ("name: twice", "name", "given twice, first on line 1"),
        ("defaults: [1, 2]", "defaults", "should be a group of fields (rate, delay"),
        ("defaults: {mtu: 1500", "", "not valid YAML"),
    ],
)
def test_invalid_input_is_rejected(text: str, place: str, says: str, tmp_path: Path) -> None:
    (found,) = problems(f"name: x\nracks: [{{workers: 4, servers: 1}}]\n{text}\n", tmp_path)
    line = 4 if "YAML" in says else 3
    assert found.startswith(f"bad.yaml:{line}: {place}: " if place else f"bad.yaml:{line}: not")
    assert says in found


@pytest.mark.parametrize(
    ("racks", "says"),
    [
        ("[{workers: 1, servers: 1}, {workers: 1}]", "2 racks and no core"),
        ("[{workers: 0, servers: 1}]", "no workers"),
        ("[{workers: 1}]", "no servers"),
        ("[]", "needs at least 1, has 0"),
        ("[{workers: -1}]", "should be at least 0, not -1"),
        ("[{workers: 250, servers: 250}, {workers: 1}]\ncores: 1", "tor0 would have 501 ports"),
        ("[{workers: 1, servers: 1, count: 501}]\ncores: [1, 1]", "core0 would have 502 ports"),
        ("[{workers: 1, servers: 1}, {workers: 1, count: 8192}]\ncores: 1",
         "8193 racks; allowed: up to 8192"),
        ("[{workers: 1, servers: 1, count: 4}]\ncores: [{racks: 3, cores: 1}]",
         "pods of 3 racks, and nothing joins 4 racks; one more level would"),
        ("[{workers: 1, servers: 1, count: 9}]\n"
         "cores: [{racks: 2, cores: 1}, {racks: 3, cores: 1}, 1]",
         "cores[1].racks: pods of 3 racks are not made of those of 2 below them"),
        ("[{workers: 1, servers: 1, count: 9}]\ncores: [1, {racks: 3, cores: 1}]",
         "cores[1].racks: pods of 3 racks are not made of those of 9"),
        ("[{workers: 1, servers: 1, count: 9}]\ncores: [{racks: 1, cores: 200}, 1]",
         "1801 cores; allowed: up to 1000"),
    ],
)  # fmt: skip
def test_unrunnable_topologies_are_rejected(racks: str, says: str, tmp_path: Path) -> None:
    assert any(says in line for line in problems(f"name: x\nracks: {racks}\n", tmp_path))


def links_between(text: str) -> dict[str, set[str]]:
    """Upper ends of switches' links, by the lower end."""
    found: dict[str, set[str]] = {}
    for link in parse(f"name: x\n{text}\n").links:
        if link.a.startswith(("tor", "core")):
            found.setdefault(link.a, set()).add(link.b)
    return found


def test_pods_of_racks_have_cores_of_their_own() -> None:
    """The last pod of a level may be smaller; levels of all racks are meshed."""
    text = "racks: [{workers: 1, servers: 1, count: 5}]\ncores: [{racks: 2, cores: 2}, 1]"
    pods = [{"core0", "core1"}, {"core2", "core3"}, {"core4", "core5"}]
    tors = {f"tor{rack}": pods[rack // 2] for rack in range(5)}
    assert links_between(text) == tors | {f"core{core}": {"core6"} for core in range(6)}
    text = (
        "racks: [{workers: 1, servers: 1, count: 6}]\n"
        "cores: [{racks: 2, cores: 1}, {racks: 4, cores: 2}, {racks: 9, cores: 1}]"
    )
    upper = {"core0": {"core3", "core4"}, "core1": {"core3", "core4"}, "core2": {"core5", "core6"}}
    found = links_between(text)
    assert {name: found[name] for name in upper} == upper
    assert all(found[f"core{number}"] == {"core7"} for number in range(3, 7))


def test_racks_that_are_alike_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(
        "name: x\nracks:\n  - {workers: 2, count: 2}\n"
        "  - {workers: 1, servers: 2, server_cores: 2, count: 3}\ncores: 1\n"
    )
    file = read(path)
    hosts = [(node.name, node.rack, node.processors) for node in file.topology.hosts]
    assert hosts[3:6] == [("w3", 1, 1), ("w4", 2, 1), ("w5", 3, 1)]
    assert hosts[7:] == [(f"s{n}", 2 + n // 2, 2) for n in range(6)]
    assert file.racks == (0, 0, 1, 1, 1)


def test_a_direction_set_twice_is_refused(tmp_path: Path) -> None:
    text = """\
        name: x
        racks: [{workers: 4, servers: 1}]
        links:
          - {ends: [w1, tor0], loss: 1 %}
          - {from: w1, to: tor0, loss: 2 %}
          - {from: w1, to: tor0, delay: 1 ms}
        """
    assert problems(text, tmp_path) == [
        "bad.yaml:5: links[1].loss: already given for w1 to tor0 on line 4"
    ]


@pytest.mark.parametrize("name", ["''", "../up", "a b", "7"])
def test_a_name_becomes_part_of_file_names(name: str, tmp_path: Path) -> None:
    (found,) = problems(f"name: {name}\nracks: [{{workers: 1, servers: 1}}]\n", tmp_path)
    says = "should be text (in quotes if need be), not 7" if name == "7" else "should be letters"
    assert found.startswith("bad.yaml:1: name: ")
    assert says in found


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"nowhere\.yaml: no such file"):
        load(tmp_path / "nowhere.yaml")


def test_near_total_loss_is_rejected_with_alternative(tmp_path: Path) -> None:
    found = problems(
        """\
        name: x
        defaults: {loss: 100 %, corrupt: 0.9901, duplicate: 1, reorder: 100 %}
        racks: [{workers: 2, servers: 1}]
        links:
          - {from: w0, to: tor0, loss: 99 %}
          - {from: w1, to: tor0, loss: 99.99999999 %}
        """,
        tmp_path,
    )
    assert [line.partition(" leaves too few packets")[0] for line in found] == [
        "bad.yaml:2: defaults.corrupt: 99.01 %",
        "bad.yaml:2: defaults.loss: 100 %",
        "bad.yaml:6: links[1].loss: 99.99999999 %",
    ]
    for line in found:
        assert "allowed: up to 99 %" in line
        # What it says to use instead is a fault, as it stands there.
        _, _, rest = line.partition("`rackhub chaos`: ")
        fault = yaml.safe_load(rest[: rest.rindex(")")])
        assert len(parse_faults(f"name: x\nfaults: {json.dumps([fault])}").content.faults) == 1


@pytest.mark.parametrize("value", ["-1", "4294967296", "1.5", "'1'", "true", "null", "[1]", "1e3"])
def test_a_seed_is_a_whole_number_of_32_bits(tmp_path: Path, value: str) -> None:
    text = "name: x\nracks: [{{workers: 1, servers: 1}}]\nseed: {}\n"
    (said,) = problems(text.format(value), tmp_path)
    assert said.startswith("bad.yaml:3: seed: should be ")
    assert parse(text.format(4294967295)).seed == 4294967295
    assert parse(text.partition("seed")[0].format()).seed == 0
