# SPDX-License-Identifier: Apache-2.0
"""Tests server processes: one per core and link, with replicas on other hosts."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.header import PORT, SERVER_PORTS
from protocol.plan import backup_of
from specs.fault_schedule import schedule
from specs.faultfile import Fault, FaultsError, parse
from tests.conftest import ROOT
from topologies.model import spec
from topologies.model.addressing import FIRST_PORT, Addressing
from topologies.model.replica_order import host_of, interleaved, units_by_rank

PBOX = spec.load(ROOT / "topologies" / "pbox.yaml")


def hosts(counts: list[int]) -> list[str]:
    return [f"s{number}" for number, count in enumerate(counts) for _ in range(count)]


def test_a_process_for_each_core_at_each_link() -> None:
    plan = Addressing(PBOX)
    ends = [end.ipv4 for end in plan.host_interfaces("s0")]
    assert len(set(ends)) == 4
    assert [(u.name, u.address, u.port) for u in plan.units("s0")] == [
        (f"s0.{2 * link + core}", ends[link], PORT + core) for link in range(4) for core in range(2)
    ]
    assert [(u.name, u.port) for u in plan.units("s1")] == [("s1", PORT)]
    assert [(u.name, u.address) for u in plan.units("w0")] == [("w0", plan.address("w0"))]
    assert plan.unit("s0.7") == plan.units("s0")[-1]
    assert [name for name in ("s0", "s0.7", "s0.8", "s1.0") if plan.known(name)] == ["s0", "s0.7"]


def test_ports_are_those_that_switches_take_for_servers() -> None:
    most = spec.parse("name: x\nracks: [{workers: 1, servers: 1, server_cores: 10}]\n")
    ports = [unit.port for unit in Addressing(most).units("s0")]
    assert ports[0] == FIRST_PORT == PORT
    assert set(ports) <= set(SERVER_PORTS)


@pytest.mark.parametrize(
    ("cores", "says"),
    [
        (0, "should be at least 1, not 0"),
        (11, "should be at most 10, not 11"),
        ("2", "should be a whole number"),
    ],
)
def test_how_many_cores_there_can_be(cores: object, says: str) -> None:
    with pytest.raises(spec.TopologyError) as caught:
        spec.parse(f"name: x\nracks: [{{workers: 1, servers: 1, server_cores: {cores!r}}}]\n")
    assert f"racks[0].server_cores: {says}" in str(caught.value)


def test_cores_are_of_servers_that_there_are() -> None:
    with pytest.raises(spec.TopologyError, match=r"racks\[0\]\.server_cores: no servers in this"):
        spec.parse(
            "name: x\nracks: [{workers: 1, server_cores: 2}, {workers: 1, servers: 1}]\ncores: 1\n"
        )


def on_own_host(order: list[str]) -> int:
    """How many have their replica on their own host."""
    return sum(order[rank] == order[backup_of(rank, len(order))] for rank in range(len(order)))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_replicas_are_on_other_hosts_unless_one_has_more_than_half(counts: list[int]) -> None:
    given_order = hosts(counts)
    order = [given_order[position] for position in interleaved(given_order)]
    assert Counter(order) == Counter(given_order)
    # Of m on one host at least 2m - n are followed by one of their own: n - m others part them.
    assert on_own_host(order) == max(0, 2 * max(counts) - sum(counts))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_an_order_that_will_do_is_kept_and_so_is_that_among_those_of_a_host(numbers) -> None:
    given_order = [f"s{number}" for number in numbers]
    positions = interleaved(given_order)
    for host in set(given_order):
        mine = [position for position in positions if given_order[position] == host]
        assert mine == sorted(mine)
    order = [given_order[position] for position in positions]
    assert interleaved(order) == tuple(range(len(order)))
    if len(set(given_order)) == len(given_order):
        assert order == given_order


def test_ranks_of_a_job_on_two_wide_servers() -> None:
    rack = "{workers: 1, servers: 1, server_cores: 2}"
    plan = Addressing(spec.parse(f"name: x\nracks: [{rack}, {rack}]\ncores: 1\n"))
    names = [unit.name for unit in units_by_rank(plan, ["s0", "s1"])]
    assert names == ["s0.0", "s1.0", "s0.1", "s1.1"]
    assert [host_of(name) for name in names] == ["s0", "s1", "s0", "s1"]


def test_a_fault_is_of_a_process_or_of_all_of_a_host() -> None:
    text = "faults: [{at: 1 s, kill: s0}, {at: 2 s, stop: s0.7, for: 1 s}]\n"
    assert schedule(parse(f"name: x\n{text}"), PBOX) == [
        Fault("kill", 1.0, node="s0"),
        Fault("stop", 2.0, node="s0.7", seconds=1.0),
    ]
    with pytest.raises(FaultsError, match=r"'s1\.0' here; allowed: .*s0\.0\.\.s0\.7"):
        schedule(parse("name: x\nfaults: [{at: 1 s, kill: s1.0}]\n"), PBOX)
