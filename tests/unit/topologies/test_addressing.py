# SPDX-License-Identifier: Apache-2.0
"""Tests the address plan: unique addresses, consistent ends, shortest-path routes."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.model.addressing import GATEWAY, Addressing, NoRouteError, Route
from topologies.model.spec import parse
from topologies.model.topology import Link, LinkQuality, Node, Topology


@st.composite
def topologies(draw: st.DrawFn, most_workers: int = 5) -> Topology:
    """Any shape: racks, levels of cores, racks without workers, servers with several links."""
    racks = draw(
        st.lists(
            st.tuples(st.integers(0, most_workers), st.integers(0, 2)), min_size=1, max_size=5
        ).filter(lambda r: any(w for w, _ in r) and any(s for _, s in r))
    )
    least = 1 if len(racks) > 1 else 0
    cores = draw(st.lists(st.integers(1, 3), min_size=least, max_size=2))
    servers = sum(count for _, count in racks)
    extra = draw(
        st.lists(st.tuples(st.integers(0, servers - 1), st.integers(0, len(racks) - 1)), max_size=2)
    )
    return parse(
        f"name: any\nracks: {[{'workers': w, 'servers': s} for w, s in racks]}\ncores: {cores}\n"
        f"links: {[{'ends': [f's{s}', f'tor{t}'], 'add': True} for s, t in extra]}\n"
    )


@given(topologies())
@settings(max_examples=60, deadline=None)
def test_names_and_addresses_are_unique_and_both_ends_agree(topology: Topology) -> None:
    plan = Addressing(topology)
    hosts = [i for node in topology.hosts for i in plan.host_interfaces(node.name)]
    ports = [port for node in topology.switches for port in plan.ports(node.name)]
    ends = [*hosts, *ports]
    assert len(ends) == 2 * len(topology.links)
    assert len({end.interface for end in ends}) == len({end.mac for end in ends}) == len(ends)
    assert len(set(plan.destinations)) == len(hosts) + len(topology.switches)
    assert GATEWAY not in plan.destinations
    for host in hosts:
        port = plan.port(host.switch, host.switch_port)
        assert (port.peer, port.peer_number) == (host.node, host.number)
        assert (port.peer_mac, host.gateway_mac) == (host.mac, port.mac)
        assert port.peer_is_host
    for port in ports:
        if not port.peer_is_host:
            peer = plan.port(port.peer, port.peer_number)
            assert (peer.peer, peer.peer_number) == (port.switch, port.number)
            assert (peer.mac, peer.peer_mac) == (port.peer_mac, port.mac)
    for node in topology.switches:
        numbers = [port.number for port in plan.ports(node.name)]
        assert numbers == list(range(1, len(numbers) + 1))


@given(topologies())
@settings(max_examples=40, deadline=None)
def test_every_route_arrives_by_a_shortest_path(topology: Topology) -> None:
    plan = Addressing(topology)
    level = {node.name: node.level for node in topology.switches}
    for switch in topology.switches:
        own = plan.switch_address(switch.name)
        routes = plan.routes(switch.name)
        assert set(routes) == set(plan.destinations) - {own}
        for destination in routes:
            path = plan.path(switch.name, destination)
            assert path[-1] == plan.attached_to(destination)
            target = path[-1]
            climb = abs(level[target] - level[switch.name])
            # Between nodes of one level it takes a hop up and one down.
            shortest = 0 if target == switch.name else max(climb, 2 if climb == 0 else 1)
            assert len(path) - 1 == shortest
            out = routes[destination]
            assert plan.port(switch.name, out.port).peer_mac == out.mac


@given(topologies(), st.data())
@settings(max_examples=60, deadline=None)
def test_routes_without_some_switches_avoid_them_and_lead_wherever_a_way_is_left(
    topology: Topology, data: st.DataObject
) -> None:
    names = [node.name for node in topology.switches]
    missing = data.draw(st.sets(st.sampled_from(names), max_size=len(names) - 1))
    whole = Addressing(topology)
    plan = whole.without(missing)
    assert plan.missing == missing
    linked = {name: {p.peer for p in plan.ports(name) if not p.peer_is_host} for name in names}
    for switch in set(names) - missing:
        reached, edge = {switch}, {switch}
        while edge:
            edge = {peer for name in edge for peer in linked[name]} - reached - missing
            reached |= edge
        routes = plan.routes(switch)
        for destination in plan.destinations:
            if destination == plan.switch_address(switch):
                continue
            if plan.attached_to(destination) not in reached:
                assert routes[destination] == whole.routes(switch)[destination]
                with pytest.raises(NoRouteError, match=f"no way from {switch} to "):
                    plan.route(switch, destination)
                with pytest.raises(NoRouteError, match=f"no way from {switch} to "):
                    plan.path(switch, destination)
                continue
            assert routes[destination] == plan.route(switch, destination)
            path = plan.path(switch, destination)
            assert not missing & set(path)
            assert path[-1] == plan.attached_to(destination)
    again = plan.without(())
    assert all(again.routes(name) == whole.routes(name) for name in names)


@given(topologies(), st.data())
@settings(max_examples=60, deadline=None)
def test_prefixes_lead_as_routes_do_and_nothing_goes_round(
    topology: Topology, data: st.DataObject
) -> None:
    names = [node.name for node in topology.switches]
    missing = data.draw(st.sets(st.sampled_from(names), max_size=len(names) - 1))
    plan = Addressing(topology).without(missing)
    prefixes = {name: plan.prefixes(name) for name in set(names) - missing}
    strangers = data.draw(st.lists(st.integers(10 << 24, (11 << 24) - 1), max_size=20))
    strangers += [int(one) ^ 1 << data.draw(st.integers(0, 23)) for one in plan.destinations]

    def next_hop(switch: str, address: IPv4Address) -> Route | None:
        found = [way for prefix, way in prefixes[switch].items() if address in prefix]
        assert len(found) < 2
        return found[0] if found else None

    for switch in prefixes:
        ways = plan.routes(switch)
        for destination in plan.destinations:
            assert next_hop(switch, destination) == ways.get(destination)
        for stranger in strangers:
            passed, where = [switch], switch
            while (way := next_hop(where, IPv4Address(stranger))) is not None:
                port = plan.port(where, way.port)
                if port.peer_is_host or port.peer in missing:
                    break
                where = port.peer
                assert where not in passed
                passed.append(where)


@given(topologies(), st.data(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_table_that_holds_the_most_prefixes_holds_them_without_any_switches(
    topology: Topology, data: st.DataObject, many: bool
) -> None:
    """In networks with many addresses, where workers share paths rack by rack, and with few."""
    names = [node.name for node in topology.switches]
    missing = data.draw(st.sets(st.sampled_from(names), max_size=len(names) - 1))
    with pytest.MonkeyPatch.context() as patch:
        if many:
            patch.setattr("topologies.model.addressing._SPREAD", 0)
        plan = Addressing(topology)
    fewer = plan.without(missing)
    for name in set(names) - missing:
        assert len(fewer.prefixes(name)) <= plan.most_prefixes
        if many:
            ways = fewer.routes(name)
            for rack in range(topology.racks):
                own = [node.name for node in topology.workers if node.rack == rack]
                far = {ways[plan.address(one)] for one in own if name != f"tor{rack}"}
                assert len(far) <= 1
    crowds = [len([n for n in topology.workers if n.rack == r]) for r in range(topology.racks)]
    saves = many and sum(count > 1 for count in crowds) > 1
    assert (plan.most_prefixes < len(plan.destinations) - 1) == saves


def test_routes_of_many_hosts_are_few_prefixes() -> None:
    """A switch of 64 racks with 16 workers each has one for each of its own hosts, and for others
    no more than there are bits in the number of racks: one for each half that it is not in."""
    racks = "[{workers: 16, servers: 1}, {workers: 16, count: 63}]"
    plan = Addressing(parse(f"name: x\nracks: {racks}\ncores: [{{racks: 32, cores: 1}}, 1]\n"))
    most = {name: len(plan.prefixes(name)) for name in ("tor0", "tor63", "core0", "core2")}
    assert most["tor63"] <= 16 + 2 * 6 + 2
    assert most["tor0"] <= 17 + 2 * 6 + 2
    assert most["core0"] <= 2 * 32 + 2 * 6
    assert most["core2"] <= 2 * 6 + 2


def test_many_racks_and_hosts_have_addresses_of_their_own() -> None:
    """Beyond what a byte of an address, and two of a MAC, count to."""
    plan = Addressing(
        parse(
            "name: x\nracks: [{workers: 1, servers: 1, count: 501}]\n"
            "cores: [{racks: 2, cores: 1}, 1]\n"
        )
    )
    assert len(set(plan.destinations)) == 2 * 501 + 501 + 251 + 1
    assert GATEWAY not in plan.destinations
    found = {
        name: str(plan.address(name)) for name in ("w250", "s250", "tor250", "core250", "w500")
    }
    assert found == {
        "w250": "10.0.2.1",
        "s250": "10.0.3.1",
        "tor250": "10.255.2.1",
        "core250": "10.255.3.1",
        "w500": "10.0.4.1",
    }
    numbers = (0, 1, 65_535, 65_536, 131_071)
    workers = [Node(f"w{n}", "worker", 0, 0, n) for n in numbers]
    links = [Link(node.name, "tor0", LinkQuality(), LinkQuality()) for node in workers]
    nodes = (*workers, Node("tor0", "switch", 0, 1, 0))
    large = Addressing(Topology("large", nodes, tuple(links), False, ""))
    macs = [large.host_interfaces(node.name)[0].mac for node in workers]
    assert macs[:2] == ["02:01:00:00:00:00", "02:01:00:01:00:00"]
    assert len(set(macs)) == len(numbers)


def test_equal_paths_are_shared_out_alike_at_every_switch() -> None:
    topology = parse(
        "name: x\nracks: [{workers: 4, servers: 1}, {workers: 4, servers: 1},"
        " {workers: 0, servers: 2}]\ncores: 2\n"
    )
    plan = Addressing(topology)
    for server, core in (("s2", "core0"), ("s3", "core1")):
        address = plan.address(server)
        assert {plan.path(f"w{n}", address)[1] for n in range(8)} == {core}


def test_unknown_address_has_no_route() -> None:
    plan = Addressing(parse("name: x\nracks: [{workers: 1, servers: 1}]\n"))
    with pytest.raises(KeyError, match="no node has"):
        plan.route("tor0", GATEWAY)
    with pytest.raises(IndexError, match="ports 1 to 2, not 3"):
        plan.port("tor0", 3)
