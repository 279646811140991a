# SPDX-License-Identifier: Apache-2.0
"""Tests horizons of any network against their definition."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.kernel.rounds import Rounds
from simulation.links.link import Link, LinkSpec
from simulation.links.trains import NEVER

TIMES = st.one_of(st.integers(0, 10**7), st.integers(0, 10**7), st.just(NEVER))
Links = list[tuple[Link, int, int]]


@st.composite
def networks(draw: st.DrawFn) -> tuple[int, Links]:
    """Nodes with any number of links, both ways each, some with undecided packets."""
    count = draw(st.integers(1, 9))
    nodes = st.integers(0, count - 1)
    ends = draw(st.lists(st.tuples(nodes, nodes).filter(lambda e: e[0] != e[1]), max_size=12))
    links: Links = []
    for a, b in ends if count > 1 else ():
        spec = LinkSpec(draw(st.sampled_from([10**8, 10**10])), delay=draw(st.integers(0, 10**6)))
        for sender, receiver in ((a, b), (b, a)):
            link = Link(spec, str(len(links)), len(links))
            link.latency = sender * 1000
            link.interval = 1 + receiver % 3 * 777_777
            links.append((link, sender, receiver))
    return count, links


def earliest(link: Link, sender: int) -> int:
    """Returns when an unknown packet may arrive if its sender is idle until a time."""
    leaves = max(min(sender + link.latency, link.pending), link.free)
    return min(leaves + link.least, NEVER)


def noticed(link: Link, at: int) -> int:
    return min(-(-at // link.interval) * link.interval, NEVER)


@given(networks(), st.data())
@settings(max_examples=200, deadline=None)
def test_horizons_are_shortest_ways(network: tuple[int, Links], data: st.DataObject) -> None:
    count, links = network
    calls = data.draw(st.integers(1, 10**7))
    rounds = Rounds(count, links, calls, NEVER, 0)
    for link, _, _ in links:
        link.free = data.draw(st.integers(0, 10**7))
        if data.draw(st.integers(0, 9)) == 0:
            link.pending = data.draw(st.integers(0, 10**7))
    due = data.draw(st.lists(TIMES, min_size=count, max_size=count))
    out = data.draw(st.lists(TIMES, min_size=count, max_size=count))  # times of calls
    for node, next_event, call in zip(rounds.nodes, due, out, strict=True):
        node.next, node.calls = next_event, call
    first = [min(one, min(out) + calls, NEVER) for one in due]
    for _ in range(count):
        for link, sender, receiver in links:
            came = noticed(link, earliest(link, first[sender]))
            first[receiver] = min(first[receiver], came)
    limits = []
    for node in range(count):
        others = [min(out[other], min(out) + calls) for other in range(count) if other != node]
        values = [other + calls for other in others]
        came = [earliest(link, first[sender]) for link, sender, to in links if to == node]
        limits.append(min([NEVER, *values, *came]))
    assert rounds.begin() is None
    assert [node.earliest for node in rounds.nodes] == first
    assert [node.horizon for node in rounds.nodes] == limits
