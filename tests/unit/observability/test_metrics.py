# SPDX-License-Identifier: Apache-2.0
"""Tests that a scrape exports the snapshots of all testbeds that answer."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner
from prometheus_client import start_http_server
from prometheus_client.parser import text_string_to_metric_families

from cli.main import main
from observability import record
from observability.control import SOCKET, Request, serve
from observability.messages.events import EmitEvent
from observability.messages.live import Snapshot
from observability.metrics import JOB_STATES, registry
from observability.record import RunDirectory
from tests.unit.observability import small_run

pytestmark = pytest.mark.usefixtures("runs")
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@contextmanager
def answering(run: RunDirectory, snapshots: list[Snapshot]) -> Iterator[None]:
    """A testbed's control socket that answers with the snapshots, one after the other."""
    stop: asyncio.Event
    ready = threading.Event()
    loop = asyncio.new_event_loop()

    async def handle(request: Request, emit: EmitEvent) -> Snapshot:
        assert request["do"] == "snapshot"
        return snapshots.pop(0)

    async def play() -> None:
        nonlocal stop
        stop = asyncio.Event()
        async with serve(run.sockets / SOCKET, handle, None):
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=[play()])
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def parsed(text: str) -> Samples:
    """Every sample of an exposition by its name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(of: Samples, name: str, **labels: str) -> float | None:
    return of.get((f"rackhub_{name}", frozenset({"testbed": "small", **labels}.items())))


def test_every_value_of_a_snapshot_is_exported_with_labels() -> None:
    with small_run.begun() as (run, _), answering(run, [small_run.snapshot()]):
        result = CliRunner().invoke(main, ["metrics"])
    assert result.exit_code == 0, result.output
    output = parsed(result.output)
    assert value(output, "up") == 1
    assert value(output, "node_up", node="controller", kind="controller") == 1
    for switch in small_run.SWITCHES:
        assert value(output, "switch_slots", switch=switch) == 8192
        assert value(output, "switch_slots_held", switch=switch) == 64
        assert value(output, "job_slots_held", switch=switch, job="digits") == 64
        assert value(output, "switch_slots_open", switch=switch, phase="aggregating") == 5
        assert value(output, "switch_packets_total", switch=switch, outcome="added") == 210
    assert value(output, "server_bytes_total", server="s1", direction="received") == 4000
    assert value(output, "server_bytes_total", server="s1", direction="sent") == 2000
    way = {"server": "s1", "direction": "sent"}
    assert value(output, "server_link_bytes_per_second", **way) == 20e6 / 8
    states = {state: value(output, "jobs", state=state) for state in JOB_STATES}
    assert states == {**dict.fromkeys(JOB_STATES, 0), "running": 1}
    for name, wanted in (
        ("plan_epoch", 1), ("iteration", 3), ("iterations", 100), ("share_in_network", 0.75),
        ("loss", 0.25), ("workers_present", 8),
    ):  # fmt: skip
        assert value(output, f"job_{name}", job="digits") == wanted
    for name, wanted in (
        ("waiting_seconds", 0.012), ("handling_seconds", 0.01), ("queueing_seconds", 0.008),
        ("optimizer_seconds", 0), ("holding_sums", 2.5), ("summing_chunks", 7), ("straggles", 1),
        ("blamed_seconds", 0.3), ("blame_share", 0.75), ("propagation_seconds", 0.002),
    ):  # fmt: skip
        own = value(output, f"job_server_{name}", job="digits", server="s0")
        assert own == pytest.approx(wanted)
    sent = {"job": "digits", "server": "s0", "direction": "sent"}
    assert value(output, "job_server_bytes_per_second", **sent) == 2e6
    # s1 has not reported its own times.
    assert value(output, "job_server_waiting_seconds", job="digits", server="s1") == 0.002
    assert value(output, "job_server_handling_seconds", job="digits", server="s1") is None


def test_unknown_values_are_left_out() -> None:
    snapshot = small_run.snapshot(controller=False)
    silent = {**snapshot["switches"][0], "up": False, "outcomes": None, "cpu_seconds": None}
    silent["slots"] = dict.fromkeys(silent["slots"])
    several = [{"name": "s0.0", "up": True, "cpu_seconds": 0.5}]
    several += [{"name": "s0.1", "up": False, "cpu_seconds": None}]
    snapshot["servers"][0] |= {"up": False, "processes": several}
    snapshot["switches"] = [silent, *snapshot["switches"][1:]]
    with small_run.begun() as (run, _), answering(run, [snapshot]):
        result = parsed(CliRunner().invoke(main, ["metrics", "--on", "small"]).output)
    assert value(result, "node_up", node="tor0", kind="switch") == 0
    assert value(result, "node_up", node="controller", kind="controller") == 0
    found = [value(result, "node_up", node=f"s0.{number}", kind="server") for number in range(2)]
    assert found == [1, 0]
    assert value(result, "node_cpu_seconds_total", node="s0.1", kind="server") is None
    assert not [
        labels for name, labels in result if ("switch", "tor0") in labels and "job" not in name
    ]
    assert value(result, "switch_slots_held", switch="tor1") == 64


def test_scrape_covers_current_testbeds() -> None:
    server, thread = start_http_server(0, "127.0.0.1", registry(record.live_runs))

    def scraped() -> Samples:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as page:
            assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return parsed(page.read().decode())

    try:
        assert scraped() == {}
        later = small_run.snapshot(seconds_up=99.0)
        with small_run.begun() as (run, _):
            with answering(run, [small_run.snapshot(), later]):
                assert value(scraped(), "uptime_seconds") == 12.5
                assert value(scraped(), "uptime_seconds") == 99.0
            # It is there, and nobody listens: it comes up, or goes down.
            assert scraped() == {("rackhub_up", frozenset({("testbed", "small")})): 0.0}
        assert scraped() == {}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_unusable_listen_address_is_rejected() -> None:
    nothing = CliRunner().invoke(main, ["metrics"])
    assert (nothing.exit_code, "no testbed is up" in nothing.output) == (1, True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = CliRunner().invoke(main, ["metrics", "--listen", address])
    assert refused.exit_code == 1
    assert f"cannot listen at {address}: Address already in use" in refused.output
    for wrong in ("9464", "127.0.0.1:http", ":9464", "127.0.0.1:70000"):
        refused = CliRunner().invoke(main, ["metrics", "--listen", wrong])
        assert refused.exit_code == 2
        assert "127.0.0.1:9464" in refused.output
