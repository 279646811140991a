# SPDX-License-Identifier: Apache-2.0
"""Tests fault files and their schedules on a topology."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import pytest
from pydantic import TypeAdapter

from specs import jobfile
from specs.fault_schedule import schedule
from specs.faultfile import DRAWN, Fault, FaultsError, load, parse, slow_words
from specs.slowdowns import EVERY_LINK, Pattern
from tests.conftest import ROOT
from topologies.model.spec import load as load_topology

TOPOLOGY = load_topology(ROOT / "topologies" / "two-racks.yaml")


def faults(text: str, seed: int | None = None) -> list[Fault]:
    return schedule(parse(f"name: x\n{text}", "x.yaml"), TOPOLOGY, seed)


def refusals(text: str, seed: int | None = None) -> list[str]:
    with pytest.raises(FaultsError) as caught:
        faults(text, seed)
    return [str(problem) for problem in caught.value.problems]


def test_the_file_that_comes_along_has_every_kind_of_emulation() -> None:
    found = schedule(load(ROOT / "jobs" / "faults" / "every-kind.yaml"), TOPOLOGY)
    assert {fault.kind for fault in found} == set(DRAWN)


def test_faults_are_sorted_by_time_and_keep_their_fields() -> None:
    found = faults(
        "faults:\n"
        "  - {at: 1500 chunks, kill: core0, gone: forever}\n"
        "  - {at: 4 s, stop: w2, for: 10 s}\n"
        "  - {at: 500 ms, kill: tor0, gone: 2 s}\n"
        "  - {at: 6, repush: tor1}\n"
        "  - {at: 7 s, impair: {ends: [core0, tor0], loss: 10 %, reorder: 0.5}, for: 5 s}\n"
        "  - {at: 8 s, kill: controller}\n"
        "  - {at: 9 s, disconnect: core0, for: 3 s}\n"
        "  - {at: 9 s, impair: {ends: all, loss: 30 %}, for: 400 chunks}\n"
        "  - {at: 9 s, kill: w1, gone: 3 s}\n"
        "  - {after: 500 chunks, repush: core0}\n"
    )
    assert found == [
        Fault("kill", 0.5, node="tor0", seconds=2.0),
        Fault("stop", 4.0, node="w2", seconds=10.0),
        Fault("repush", 6.0, node="tor1"),
        Fault(
            "impair", 7.0, ends=("core0", "tor0"), seconds=5.0,
            quality=(("loss", 0.1), ("reorder", 0.5)),
        ),
        Fault("kill", 8.0, node="controller"),
        Fault("disconnect", 9.0, node="core0", seconds=3.0),
        Fault("impair", 9.0, ends=EVERY_LINK, quality=(("loss", 0.3),), lasts=400),
        Fault("kill", 9.0, node="w1", seconds=3.0),
        Fault("kill", chunks=1500, node="core0", seconds=math.inf),
        Fault("repush", node="core0", after=500),
    ]  # fmt: skip
    assert [fault.where for fault in found[3:7]] == [
        "core0-tor0",
        "controller",
        "core0",
        "every link",
    ]
    for fault in found:  # as it goes over the control socket
        sent = json.dumps(dataclasses.asdict(fault))
        assert TypeAdapter(Fault).validate_json(sent) == fault


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("faults: [{at: 1 s}]", "x.yaml:2: faults[0]: needs exactly one of kill, stop,"),
        (
            "faults: [{at: 1 s, kill: s0, stop: s0, for: 1 s}]",
            "x.yaml:2: faults[0]: needs exactly one",
        ),
        ("faults: [{kill: s0}]", "x.yaml:2: faults[0]: needs either `at` or `after`"),
        ("faults: [{after: 1 s, kill: s0}]", "x.yaml:2: faults[0].after: '1 s' is not understood"),
        ("faults: [{at: soon, kill: s0}]", "x.yaml:2: faults[0].at: 'soon' is not understood"),
        ("faults: [{at: 1 s, kill: w99}]", "x.yaml:2: faults[0].kill: there is no "),
        ("faults: [{at: 1 s, repush: w0}]", "x.yaml:2: faults[0].repush: there is no "),
        ("faults: [{at: 1 s, stop: s0}]", "x.yaml:2: faults[0]: stop needs `for`"),
        ("faults: [{at: 1 s, disconnect: tor0}]", "x.yaml:2: faults[0]: disconnect needs `for`"),
        (
            "faults: [{at: 1 s, disconnect: s0, for: 1 s}]",
            "x.yaml:2: faults[0].disconnect: there is no ",
        ),
        ("faults: [{at: 1 s, kill: s0, for: 1 s}]", "x.yaml:2: faults[0]: kill takes no `for`"),
        ("faults: [{at: 1 s, stop: s0, for: 0 s}]", "x.yaml:2: faults[0].for: "),
        ("faults: [{at: 1 s, stop: s0, for: 9 chunks}]", "x.yaml:2: faults[0].for: stop lasts for"),
        (
            "faults: [{at: 1 s, stop: s0, for: 1 s, gone: 1 s}]",
            "x.yaml:2: faults[0].gone: is for kill",
        ),
        (
            "faults:\n  - {at: 1 s, impair: {ends: [w0, tor1], loss: 1 %}, for: 1 s}",
            "x.yaml:3: faults[0].impair.ends: no link joins 'w0' and 'tor1'",
        ),
        (
            "faults: [{at: 1 s, impair: {ends: [w0, tor0]}, for: 1 s}]",
            "x.yaml:2: faults[0].impair: needs one of loss, duplicate, reorder, corrupt",
        ),
        (
            "faults: [{at: 1 s, impair: {ends: all, loss: 100 %}, for: 500 chunks}]",
            "x.yaml:2: faults[0].impair.loss: 100 % until 500 chunks are done, which they would",
        ),
        ("faults: []", "x.yaml:1: has no faults"),
        ("random: {every: 1 s, count: 1, nodes: [w99]}", "x.yaml:2: random.nodes[0]: 'w99' is no"),
        (
            "random: {every: 1 s, count: 1, nodes: [servers], kinds: [repush, disconnect]}",
            "x.yaml:2: random.kinds: of repush and disconnect only switches can have any",
        ),
        ("faults: [{at: 1 s, bite: s0}]", "x.yaml:2: faults[0].bite: unknown field; allowed here:"),
    ],
)
def test_invalid_faults_are_rejected_with_location(text: str, refusal: str) -> None:
    (said,) = refusals(text)
    assert said.startswith(refusal)


def test_slowdowns_keep_their_fields() -> None:
    found = faults(
        "faults:\n"
        "  - {at: 1 s, slow: {link: [tor0, s0], by: 3.5, way: up}, for: 10 s}\n"
        "  - {at: 2 s, slow: {link: all, by: 1, pattern: constant}, for: forever}\n"
        "  - {at: 3 s, slow: {host: w0, by: 2, pattern: {periodic: 2 s}}, for: 500 chunks}\n"
        "  - {at: 4 s, load: {from: s0, to: w1, rate: 2 Gbit/s, busy: 1 s, idle: 3 s}, for: 9 s}\n"
        "  - {after: 5 chunks, slow: {host: s1, by: 5, pattern: {walk: 1 s, seed: 0}}, for: 1 s}\n",
    )
    assert found == [
        Fault("slow", 1.0, ends=("tor0", "s0"), seconds=10.0, by=3.5, way="up"),
        Fault("slow", 2.0, ends=EVERY_LINK, seconds=math.inf),
        Fault("slow", 3.0, node="w0", lasts=500, by=2.0, pattern=Pattern("periodic", 2.0)),
        Fault("load", 4, ends=("s0", "w1"), seconds=9, rate=2_000_000_000, turns=(1, 3)),
        Fault("slow", node="s1", after=5, seconds=1.0, by=5.0, pattern=Pattern("walk", 1.0, 0)),
    ]
    assert [slow_words(one) for one in found if one.kind == "slow"] == [
        "takes 3.5 times as long upward for 10 s",
        "takes 1 times as long",
        "takes 2 times as long by turns for 500 chunks",
        "takes up to 5 times as long at random for 1 s",
    ]


def test_groups_of_hosts_have_factors_that_are_given_or_drawn() -> None:
    def found(slow: str) -> list[Fault]:
        return faults(f"faults: [{{at: 1 s, slow: {{{slow}}}, for: 9 s}}]")

    given = found("host: servers, by: 2")
    assert given == [Fault("slow", 1, node=f"s{n}", seconds=9, by=2) for n in range(2)]
    drawn = found("host: workers, by: 4, draw: 7")
    assert [one.node for one in drawn] == [f"w{n}" for n in range(8)]
    assert len({one.by for one in drawn}) == 8
    assert all(1 <= one.by <= 4 for one in drawn)
    assert drawn == found("host: workers, by: 4, draw: 7") != found("host: workers, by: 4, draw: 8")
    walks = found("host: servers, by: 4, pattern: {walk: 1 s, seed: 3}")
    assert [one.pattern.seed for one in walks] == [3, 4]


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("slow: {by: 2}, for: 1 s", "slow: needs either `link`, its two ends, or `host`"),
        ("slow: {host: w0, link: all, by: 2}, for: 1 s", "slow: needs either `link`, its two"),
        ("slow: {host: w0}, for: 1 s", "slow.by: required, but not given"),
        ("slow: {host: w0, by: 0.5}, for: 1 s", "slow.by: 0.5 is no factor; allowed: 1 (as with"),
        ("slow: {host: w0, by: .nan}, for: 1 s", "slow.by: nan is no factor; allowed: 1 (as with"),
        ("slow: {host: w0, by: 1001}, for: 1 s", "slow.by: 1001 is no factor; allowed: 1 (as wi"),
        ("slow: {host: w0, by: twice}, for: 1 s", "slow.by: 'twice' is no factor; allowed: 1 (a"),
        ("slow: {host: w99, by: 2}, for: 1 s", "slow.host: there is no host 'w99' here; allowed:"),
        ("slow: {host: tor0, by: 2}, for: 1 s", "slow.host: there is no host 'tor0' here; allow"),
        ("slow: {host: w0, way: up, by: 2}, for: 1 s", "slow.way: is of a link; a host has none"),
        ("slow: {link: [w0, tor1], by: 2}, for: 1 s", "slow.link: no link joins 'w0' and 'tor1'"),
        ("slow: {link: [w0], by: 2}, for: 1 s", "slow.link: "),
        ("slow: {link: [every, link], by: 2}, for: 1 s", "slow.link: "),
        ("impair: {ends: [every, link], loss: 1 %}, for: 1 s", "impair.ends: "),
        ("slow: {link: all, way: out, by: 2}, for: 1 s", "slow.way: "),
        ("slow: {host: w0, by: 2, draw: 1}, for: 1 s", "slow.draw: is for `host: workers` or"),
        ("slow: {host: workers, by: 2, draw: -1}, for: 1 s", "slow.draw: "),
        ("slow: {host: w0, by: 2}", "needs `for`, how long it lasts"),
        (
            "slow: {host: w0, by: 2, pattern: {periodic: 1 s, walk: 1 s}}, for: 1 s",
            "slow.pattern: is periodic or a walk",
        ),
        (
            "slow: {host: w0, by: 2, pattern: {periodic: 1 s, seed: 2}}, for: 1 s",
            "slow.pattern: seed is of a walk",
        ),
        ("slow: {host: w0, by: 2, pattern: {periodic: 0 s}}, for: 1 s", "slow.pattern.periodic: "),
        ("slow: {host: w0, by: 2, pattern: wild}, for: 1 s", "slow.pattern: "),
        ("load: {from: w0, to: w0, rate: 1 Gbit/s}, for: 1 s", "load.to: w0 is where it comes"),
        ("load: {from: w0, to: tor0, rate: 1}, for: 1 s", "load.rate: "),
        ("load: {from: tor0, to: w0, rate: 1 Gbit/s}, for: 1 s", "load.from: there is no host"),
        (
            "load: {from: w1, to: w0, rate: 1 Gbit/s, busy: 1 s}, for: 1 s",
            "load: needs both `busy` and `idle`",
        ),
        (
            "impair: {ends: all, loss: 1 %}, for: forever",
            "for: impair has to end: give a time, such as 5 s",
        ),
        ("kill: s9", "kill: there is no 's9' here; allowed: "),
        ("kill: s0, for: 1 s", "kill takes no `for`"),
        ("disconnect: w0, for: 1 s", "disconnect: there is no 'w0' here; allowed: tor0,"),
    ],
)
def test_invalid_lasting_faults_are_rejected_with_location(text: str, refusal: str) -> None:
    (said,) = refusals(f"faults: [{{at: 1 s, {text}}}]")
    where = "x.yaml:2: faults[0]"
    assert said.startswith(
        (f"{where}.{refusal}", f"{where}: slow {refusal}", f"{where}: {refusal}")
    )


def test_servers_come_and_go() -> None:
    text = "faults: [{at: 9 chunks, scale: {servers: [+s1, -s0]}}]"
    (fault,) = faults(text)
    assert fault == Fault("scale", chunks=9, servers=("+s1", "-s0"))
    assert fault.where == "servers +s1 -s0"


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("{servers: [s1]}", ".scale.servers: 's1' should be +NAME, which comes, or -NAME"),
        ("{servers: [+]}", ".scale.servers: '+' should be +NAME"),
        ("{servers: [7]}", ".scale.servers[0]: "),
        ("{servers: []}", ".scale: needs `servers`, `workers`, or both"),
        ("{}", ".scale: needs `servers`, `workers`, or both"),
        ("{workers: [w1]}", ".scale.workers: 'w1' should be +NAME"),
        ("{workers: [+w99]}", ".scale.workers[0]: there is no host 'w99' here; allowed: w0"),
        ("{servers: [+s1, -s9]}", ".scale.servers[1]: the job has no server 's9'; allowed: w0"),
        ("{servers: [+s1]}, for: 1 s", ": scale takes no `for`"),
        ("{servers: [+s1, -s1]}", ".scale.servers: 's1' is named twice"),
        ("{workers: [-w0, -w0]}", ".scale.workers: 'w0' is named twice"),
    ],
)
def test_invalid_orders_to_scale_are_rejected_with_location(text: str, refusal: str) -> None:
    (said,) = refusals(f"faults: [{{at: 1 s, scale: {text}}}]")
    assert said.startswith(f"x.yaml:2: faults[0]{refusal}")


def test_workers_come_and_go() -> None:
    text = "faults: [{at: 1 s, scale: {workers: [+w2, -w0]}}]"
    (fault,) = faults(text)
    assert fault.where == "workers +w2 -w0"


_SERVED = "name: j\niterations: 9\nplacement: {kind: ncs%s}\n"
_APART = "consistency: asynchronous\noptimizer: {at: servers}\n"


@pytest.mark.parametrize(
    ("job", "text", "refusal"),
    [
        (
            _SERVED % ", servers: [s0]",
            "{servers: [+s1]}",
            ".servers[0]: the job has no server 's1'; allowed: s0",
        ),
        (
            _SERVED % "",
            "{servers: [-s1, -s0]}",
            ".servers: no server of job j would have any slices",
        ),
        (
            _SERVED % ", servers: [s0], spares: [s1]",
            "{servers: [-s1, -s0]}",
            ".servers: no server of job j would have any slices",
        ),
        (
            "name: j\niterations: 9\n",
            "{servers: [-s1]}",
            ".servers: tree two-level of job j has a switch sum, so servers have no slices",
        ),
        (
            _SERVED % ", workers: [w0, w1]" + _APART,
            "{workers: [+w2]}",
            ".workers: servers of job j count the gradients of those workers that it began with",
        ),
    ],
)
def test_what_a_job_can_never_do_is_refused_before_it_starts(
    job: str, text: str, refusal: str
) -> None:
    document = parse(f"faults: [{{at: 1 s, scale: {text}}}]", "x.yaml")
    with pytest.raises(FaultsError) as caught:
        schedule(document, TOPOLOGY, job=jobfile.parse(job, "j.yaml"))
    assert [str(one) for one in caught.value.problems] == [f"x.yaml:1: faults[0].scale{refusal}"]


def test_what_a_job_may_be_able_to_do_is_not_refused() -> None:
    for job, text in (
        (_SERVED % ", servers: [s0], spares: [s1]", "{servers: [-s0]}"),
        ("name: j\niterations: 9\nadmission: servers\n", "{servers: [-s1]}"),
        (_SERVED % "" + _APART, "{workers: [+w2]}"),
    ):
        document = parse(f"faults: [{{at: 1 s, scale: {text}}}]", "x.yaml")
        assert len(schedule(document, TOPOLOGY, job=jobfile.parse(job, "j.yaml"))) == 1


def test_random_faults_are_of_the_kinds_named() -> None:
    text = "random: {every: 1 s, count: 99, kinds: [impair, stop], nodes: [tor0, w0]}"
    assert {(one.kind, one.node) for one in faults(text)} == {
        *(("impair", ""), ("stop", "tor0"), ("stop", "w0")),
    }
    refused = refusals("random: {every: 1 s, count: 1, kinds: [slow]}")
    assert refused[0].startswith("x.yaml:2: random.kinds[0]: ")


def test_patterns_are_what_they_say() -> None:
    def steps(pattern: Pattern, by: float, lasts: float) -> list[tuple[float, float]]:
        found = itertools.islice(pattern.steps(by, lasts), 100)
        return [(at, float(factor)) for at, factor in found]

    assert steps(Pattern(), 3.5, 10) == [(0, 3.5), (10, 1)]
    assert steps(Pattern(), 3.5, math.inf) == [(0, 3.5)]
    assert steps(Pattern("periodic", 4), 2, 5) == [(0, 2), (2, 1), (4, 2), (5, 1)]
    walk = steps(Pattern("walk", 0.5, 7), 256, math.inf)
    assert walk == steps(Pattern("walk", 0.5, 7), 256, math.inf)
    assert walk != steps(Pattern("walk", 0.5, 8), 256, math.inf)
    assert [at for at, _ in walk] == [0.5 * number for number in range(100)]
    levels = [math.log2(factor) for _, factor in walk]
    assert levels[0] == 4
    assert all(abs(one - other) == 1 for one, other in itertools.pairwise(levels))
    assert 0 <= min(levels) < max(levels) <= 8


def test_a_file_without_a_name_is_told_its_mistake() -> None:
    """And runs without one, once that is mended."""
    for text, refusal in (
        ("faults: [{at: 1 s, kill: w99}]", "x.yaml:1: faults[0].kill: there is no 'w99' here"),
        ("faults: [{at: 1 s, stop: s0}]", "x.yaml:1: faults[0]: stop needs `for`"),
        ("", "x.yaml:1: is empty; allowed: name, faults, random"),
        ("faults: []", "x.yaml:1: has no faults; allowed: faults, random, or both"),
    ):
        with pytest.raises(FaultsError) as caught:
            schedule(parse(text, "x.yaml"), TOPOLOGY)
        (problem,) = caught.value.problems
        assert str(problem).startswith(refusal)
    mended = parse("faults: [{at: 1 s, stop: s0, for: 1 s}]")
    assert schedule(mended, TOPOLOGY) == [Fault("stop", 1.0, node="s0", seconds=1.0)]


def test_a_seed_needs_random_faults() -> None:
    (said,) = refusals("faults: [{at: 1 s, kill: s0}]", seed=7)
    assert "--seed is for random faults" in said


def test_random_faults_follow_their_seed_and_their_choice_of_nodes() -> None:
    text = "random: {seed: 3, every: 2 s, nodes: [switches, s1], count: 200}"
    found = faults(text)
    assert found == faults(text)
    assert found != faults(text, seed=4)
    assert faults(text, seed=4) == faults(text.replace("seed: 3", "seed: 4"))
    assert [fault.at for fault in found] == [2.0 * number for number in range(1, 201)]
    assert {fault.kind for fault in found} == set(DRAWN)
    switches = {"tor0", "tor1", "core0"}
    for fault in found:
        if fault.kind == "impair":
            assert switches & set(fault.ends)
            assert all(0 < value <= 0.1 for _, value in fault.quality)
        else:
            others = {"s1"} if fault.kind in ("kill", "stop") else set()
            assert fault.node in switches | others
        assert (fault.seconds > 0) == (fault.kind in ("stop", "disconnect", "impair"))
