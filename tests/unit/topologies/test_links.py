# SPDX-License-Identifier: Apache-2.0
"""Tests link counters after a switch was killed and lost its own."""

from __future__ import annotations

from observability.links import Carried, Measured, rows, since
from planner.link_loads import Direction
from tests.conftest import ROOT
from topologies.model.addressing import Addressing
from topologies.model.spec import load

ADDRESSING = Addressing(load(ROOT / "topologies" / "two-racks.yaml"))
SWITCHES = ("tor0", "tor1", "core0")


def measured(scale: int, **starts: int | None) -> Measured:
    """Every direction carried ``scale`` times a number of its own, in bytes; packets: a tenth."""
    sent, received = {}, {}
    for name in SWITCHES:
        for port in ADDRESSING.ports(name):
            own = scale * number(name, port.peer)
            sent[Direction(name, port.interface)] = Carried(own, own // 10)
            other = scale * number(port.peer, name)
            way = Direction(port.peer, port.peer_interface)
            if port.peer_is_host:
                sent[way] = Carried(other, other // 10)
            else:
                # Receivers have counted ten bytes less: one can tell whose count it is.
                received[way] = Carried(other - 10 * scale, other // 10 - scale)
    counting: dict[str, int | None] = {**dict.fromkeys(SWITCHES, 1), **starts}
    for name, start in starts.items():
        if start is None:
            for port in ADDRESSING.ports(name):
                sent[Direction(name, port.interface)] = Carried(None, None)
                received.pop(Direction(port.peer, port.peer_interface), None)
    return Measured(sent, received, counting)


def number(sender: str, receiver: str) -> int:
    names = [node.name for node in ADDRESSING.topology.nodes]
    return 1000 * (names.index(sender) + 1) + 10 * names.index(receiver)


def carried(before: Measured, now: Measured) -> dict[tuple[str, str], Carried]:
    found = since(ADDRESSING, before, now)
    result = rows(ADDRESSING, found, None)
    return {(r["from"], r["to"]): Carried(r["bytes"], r["packets"], r["unknown"]) for r in result}


def test_added_frames_match_senders_count() -> None:
    for (sender, receiver), found in carried(measured(1), measured(3)).items():
        own = 2 * number(sender, receiver)
        assert found == Carried(own, own // 10)


def test_counters_of_restarted_switch_come_from_neighbours() -> None:
    for now in (measured(3, core0=2), measured(3, core0=None)):
        found = carried(measured(1), now)
        for tor in ("tor0", "tor1"):
            own = 2 * number("core0", tor)
            assert found["core0", tor] == Carried(own - 20, own // 10 - 2)
            assert found[tor, "core0"] == Carried(
                2 * number(tor, "core0"), number(tor, "core0") // 5
            )


def test_lost_counters_are_unknown_with_reason() -> None:
    found = carried(measured(1), measured(3, tor0=2))
    why = "tor0 has lost its counters"
    assert found["tor0", "w0"] == Carried(None, None, why)
    assert found["w0", "tor0"] == Carried(2 * number("w0", "tor0"), None, f"packets: {why}")
    assert found["tor0", "core0"].bytes == 2 * number("tor0", "core0") - 20
    assert found["core0", "tor0"].bytes == 2 * number("core0", "tor0")
    assert found["w4", "tor1"].packets == number("w4", "tor1") // 5


def test_counters_between_restarted_switches_are_unknown() -> None:
    found = carried(measured(1), measured(3, tor0=2, core0=2))
    assert found["tor0", "core0"] == Carried(None, None, "tor0 has lost its counters")
    assert found["core0", "tor0"] == Carried(None, None, "core0 has lost its counters")
    assert found["core0", "tor1"].bytes == 2 * number("core0", "tor1") - 20
