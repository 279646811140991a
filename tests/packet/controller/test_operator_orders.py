# SPDX-License-Identifier: Apache-2.0
"""Tests the controller's handling of orders from its launcher, on switches behind gRPC."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from typing import Any

import pytest

from controller.jobs.job import Job, Role, State
from controller.planning.tree_planner import TreeKind
from controller.service.notices import tell
from controller.service.orders import obey
from protocol import jobs_pb2
from protocol.header import PORT
from protocol.plan import Address
from tests.packet.controller.controller_rig import entries, values
from tests.packet.controller.test_switch_faults import KINDS, TEXT, Plant
from topologies.model.spec import parse

PLAIN = {"loss": 0, "duplicate": 0, "reorder": 0, "corrupt": 0}


@pytest.fixture(params=KINDS)
def plant(request: pytest.FixtureRequest) -> Iterator[Plant]:
    with ExitStack() as stack:
        yield Plant(parse(TEXT % 2), request.param, stack)


@pytest.fixture
def embedded() -> Iterator[Plant]:
    with ExitStack() as stack:
        yield Plant(parse(TEXT % 2), "embedded", stack)


def replies(plant: Plant, capsys: pytest.CaptureFixture[str], *orders: object) -> list[str]:
    """The answers to orders."""
    lines = [order if isinstance(order, bytes) else json.dumps(order).encode() for order in orders]
    obey(plant.table, lines)
    return capsys.readouterr().out.splitlines()


def impaired(plant: Plant) -> dict[tuple[str, str], list[dict[str, int]]]:
    """What is in the impairment tables, less seeds, by switch and way; where there is anything."""
    found = {}
    for name in plant.names:
        for way in ("arrival", "departure"):
            rows = [
                values(plant.fabric, e)[1]
                for e in entries(plant.fabric, name, f"{way}.impairments")
            ]
            for row in rows:
                del row["seed"]
            if rows:
                found[name, way] = rows
    return found


def test_links_stay_impaired_both_ways_until_restored(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    job = plant.train()
    links: list[dict[str, Any]] = [{"ends": ["core0", "tor0"], "loss": 0.5, "duplicate": 0.25}]
    assert replies(plant, capsys, {"impair": links}) == ["done"]
    row = {**PLAIN, "loss": 1 << 31, "duplicate": 1 << 30}
    assert impaired(plant) == {("tor0", "departure"): [row], ("core0", "departure"): [row]}
    # Another set takes the place of the first; a host's link is impaired at its switch.
    links = [{"ends": ["w0", "tor0"], "reorder": 1.0}, {"ends": ["tor0", "core0"], "loss": 0.5}]
    assert replies(plant, capsys, {"impair": links}) == ["done"]
    lost, late = {**PLAIN, "loss": 1 << 31}, {**PLAIN, "reorder": (1 << 32) - 1}
    found = impaired(plant)
    departures = found.pop(("tor0", "departure"))
    assert sorted(map(str, departures)) == sorted(map(str, [lost, late]))
    assert found == {("tor0", "arrival"): [late], ("core0", "departure"): [lost]}
    # A switch that comes back has what the link still is.
    plant.restart("core0")
    plant.mend("core0")
    assert impaired(plant)["core0", "departure"] == [lost]
    assert replies(plant, capsys, {"impair": []}) == ["done"]
    assert impaired(plant) == {}
    plant.follow(job)
    assert plant.whole()


def needs(plant: Plant, switch: str) -> dict[str, int]:
    """Returns the parameters of the default action of a switch's gate."""
    info = plant.fabric.dataplane.p4info
    (found,) = plant.fabric.connections[switch].read([info.default_entry("gate.links")])
    given: dict[str, int] = values(plant.fabric, found.table_entry)[1]
    return given


def test_gates_open_for_what_links_ask_for(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("tor0", "tor1", "core0")
    assert [needs(plant, one)["unguarded"] for one in names] == [0, 0, 1]
    assert [needs(plant, one)["unimpaired"] for one in names] == [1, 1, 1]
    frame = plant.fabric.dataplane.frame_bytes
    least = min(port.outgoing.ecn_bytes for port in plant.fabric.addressing.ports("core0"))
    assert needs(plant, "core0")["unmarked"] == least // frame
    links = [{"ends": ["core0", "tor0"], "loss": 0.5}]
    assert replies(plant, capsys, {"impair": links}) == ["done"]
    assert [needs(plant, one)["unimpaired"] for one in names] == [0, 1, 0]
    assert replies(plant, capsys, {"impair": []}) == ["done"]
    assert [needs(plant, one)["unimpaired"] for one in names] == [1, 1, 1]


def test_unreachable_switch_gets_impairments_on_return(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant.stop("core1")
    assert not plant.monitor.look("core1")
    links = [{"ends": ["tor1", "core1"], "corrupt": 0.5}]
    assert replies(plant, capsys, {"impair": links}) == ["done"]
    plant.start("core1")
    plant.mend("core1")
    assert impaired(plant)["core1", "departure"] == [{**PLAIN, "corrupt": 1 << 31}]


DIED = {"how": "was killed by SIGKILL"}


def test_dead_switch_is_avoided_until_it_returns(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    job = plant.train()
    assert plant.roots(job) == ["core0"]
    plant.stop("core0")
    # Nobody has missed it yet: neither a member nor the monitor.
    assert replies(plant, capsys, {"died": "core0", **DIED}) == ["done"]
    assert (job.epoch, plant.roots(job)) == (2, ["core1"])
    plant.follow(job)
    assert replies(plant, capsys, {"died": "core0", **DIED}) == ["done"]
    assert job.epoch == 2
    plant.start("core0")
    plant.mend("core0")
    assert (job.epoch, plant.roots(job)) == (3, ["core0"])
    plant.follow(job)
    assert plant.whole()


def test_streams_fall_back_to_servers_without_core(
    embedded: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    def told_to_workers(job: Job) -> tuple[int, list[str]]:
        instruction = embedded.table.instruction(job.nonce, Role.WORKER, 0)
        assert instruction is not None
        return instruction.plan.tree, list(instruction.plan.summed_at)

    job = embedded.train()
    assert told_to_workers(job) == (jobs_pb2.TWO_LEVEL, ["core0"])
    embedded.cut("core1")  # it forwards, but takes no entries
    assert not embedded.monitor.look("core1")
    embedded.stop("core0")
    assert replies(embedded, capsys, {"died": "core0", **DIED}) == ["done"]
    embedded.follow(job)
    assert told_to_workers(job) == (jobs_pb2.TOR, ["s0", "s1"])
    embedded.start("core0")
    embedded.mend("core0")
    embedded.follow(job)
    assert told_to_workers(job) == (jobs_pb2.TWO_LEVEL, ["core0"])
    embedded.serve_again("core1")
    embedded.mend("core1")
    assert embedded.whole()


def test_jobs_continue_without_dead_server(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    job = plant.train()
    assert replies(plant, capsys, {"died": "s0", **DIED}) == ["done"]
    assert (job.epoch, job.scheme.servers) == (2, (1,))
    plant.follow(job)
    assert plant.whole()
    assert replies(plant, capsys, {"died": "s1", **DIED}) == ["done"]
    # The last one may be started again; no member has to wait longer than its lease for that.
    assert (job.state, job.epoch) == (State.RUNNING, 2)
    plant.clock.now += job.lease + 1
    plant.table.expire()
    assert job.state is State.FAILED
    assert "server 1 (s1) was killed by SIGKILL" in job.reason


def test_restarted_server_process_is_distinct(embedded: Plant) -> None:
    embedded.clock.now = 5.0
    job = embedded.train()
    embedded.table.outages.died("s0", "was killed by SIGKILL", when=4.0)
    assert (job.epoch, job.scheme.servers) == (1, (0, 1))
    embedded.table.outages.died("s0", "was killed by SIGKILL", when=6.0)
    assert (job.epoch, job.scheme.servers) == (2, (1,))


def test_job_waits_for_replacement_of_server_until_deadline(
    embedded: Plant,
) -> None:
    table = embedded.table
    job = table.create("digits", ["w0"], ["s0"], TreeKind.TOR)
    address = Address(int(embedded.fabric.addressing.address("s0")), PORT)
    table.connect(job.nonce, Role.SERVER, 0, address, process=1)
    table.outages.died("s0", "was killed by SIGKILL", when=0.0)
    assert [job.name(place) for place in job.absent()] == ["worker 0 (w0)", "server 0 (s0)"]
    table.connect(job.nonce, Role.SERVER, 0, address, process=2)
    assert [job.name(place) for place in job.absent()] == ["worker 0 (w0)"]
    table.outages.died("s0", "was killed by SIGKILL", when=1.0)
    embedded.clock.now = table.join + 1
    table.expire()
    why = f"not in after {table.join:.0f} s: worker 0 (w0), server 0 (s0)"
    assert (job.state, job.reason) == (State.FAILED, why)


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (b"impair everything", "an order is a JSON object on a line"),
        (b"\xff\xfe{}", "an order is a JSON object on a line"),
        (b"[" * 100_000, "an order is a JSON object on a line"),
        (b"[]", "an order is"),
        ({}, "an order is"),
        ({"impair": {}}, "an order is"),
        ({"died": "s9", "how": "was killed"}, "'s9' is neither a switch nor a host"),
        ({"died": "s0"}, "an order is"),
        ({"impair": [], "more": 1}, "an order is"),
        ({"impair": [7]}, "a link to impair is"),
        ({"impair": [{"ends": ["tor0"], "loss": 0.1}]}, "a link to impair is"),
        ({"impair": [{"ends": ["tor0", 7], "loss": 0.1}]}, "a link to impair is"),
        ({"impair": [{"ends": ["tor0", "tor1"], "loss": 0.1}]}, "no link of two-cores joins tor"),
        ({"impair": [{"ends": ["tor0", "core0"], "lost": 0.1}]}, "'lost' is none of loss, dup"),
        ({"impair": [{"ends": ["tor0", "core0"], "loss": 1.1}]}, "loss is a probability, 0 to 1"),
        ({"impair": [{"ends": ["tor0", "core0"], "loss": True}]}, "loss is a probability, 0 to 1"),
        (b'{"impair": [{"ends": ["tor0", "core0"], "loss": NaN}]}', "loss is a probability"),
    ],
)
def test_invalid_order_is_rejected(
    embedded: Plant, capsys: pytest.CaptureFixture[str], order: object, why: str
) -> None:
    answers = replies(embedded, capsys, order, b"", {"impair": []})
    assert answers[0].startswith(f"refused {why}")
    assert answers[1:] == ["done"]
    assert impaired(embedded) == {}


def test_a_job_is_stopped_without_its_nonce(
    embedded: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    job = embedded.train()
    stop = {"stop": job.number, "why": "stopped on request"}
    assert replies(embedded, capsys, stop) == ["done"]
    assert (job.state, job.reason) == (State.FAILED, "stopped on request")
    assert embedded.whole()
    assert all(budget.used == 0 for budget in embedded.table.resources.budgets.values())
    assert replies(embedded, capsys, stop) == [f"refused no job {job.number} is alive"]


def test_launcher_is_notified_of_jobs(embedded: Plant) -> None:
    """In lines on a pipe, each of all that are alive."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as lines, os.fdopen(writing, "w") as output, redirect_stdout(output):
        threading.Thread(target=tell, args=[embedded.table], daemon=True).start()
        assert json.loads(lines.readline()) == {"jobs": []}
        job = embedded.table.create("mine", ["w0", "w2"], ["s1", "s0"], TreeKind.TWO_LEVEL)
        (heard,) = json.loads(lines.readline())["jobs"]
        embedded.table.stop(job.number, "enough")
        assert json.loads(lines.readline()) == {"jobs": []}
    assert heard == {
        "job": job.number,
        "name": "mine",
        "nonce": job.nonce,
        "workers": ["w0", "w2"],
        "servers": ["s1", "s0"],
        "switches": ["core0", "tor0", "tor1"],
    }
