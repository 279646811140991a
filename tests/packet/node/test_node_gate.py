# SPDX-License-Identifier: GPL-2.0-only
"""Tests the gate: a switch looks up what one of its links asks for, and nothing else."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from controller.p4rt.entries import bare, deletion, insertion
from protocol.outcomes import Outcome
from tests.packet.node.node_rig import SERVER, SERVER_PORT, SWITCH_MAC, number, outcomes
from tests.packet.targets import Target

PORT = 5  # whose draws no other test knows
FRAME = bytes(
    Ether(dst=SWITCH_MAC) / IP(src="10.0.0.77", dst=SERVER) / UDP(sport=9, dport=9, chksum=0)
)


@pytest.mark.parametrize(
    ("impaired", "guarded", "becomes"),
    [
        (True, True, Outcome.IMPAIRED),
        (False, True, Outcome.SPOOFED_SOURCE),
        (False, False, Outcome.FORWARDED),
    ],
)
def test_entries_count_where_the_gate_lets_packets_in(
    target: Target, impaired: bool, guarded: bool, becomes: Outcome
) -> None:
    """At a port that loses everything and permits no source."""
    program = target.plane.program
    entities = [
        program.impairment(
            PORT, True, seed=1, loss=2**32 - 1, duplicate=0, reorder=0, corrupt=0
        ),
        program.source(PORT, 0, 0, permitted=False),
        program.route(number(SERVER), 32, SERVER_PORT, 1),
    ]  # fmt: skip
    before = outcomes(target)
    gate = program.needs(impaired, guarded, marked_above=None)
    target.connection.write([insertion(one) for one in (*entities, gate)])
    passes = becomes is Outcome.FORWARDED
    output = target.exchange(
        PORT, [FRAME], lambda out: outcomes(target) != before and len(out) == passes
    )
    usual = program.needs(impaired=True, guarded=True, marked_above=0)
    target.connection.write([*(deletion(bare(one)) for one in entities), insertion(usual)])
    now = outcomes(target)
    assert {one: now[one] - before[one] for one in now if now[one] != before[one]} == {becomes: 1}
    assert [port for port, _ in output] == [SERVER_PORT] * passes
