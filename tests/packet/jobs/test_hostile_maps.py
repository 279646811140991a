# SPDX-License-Identifier: Apache-2.0
"""Tests that members refuse a chunk map that cannot be as soon as they hear of it, by an error that
ends no process."""

from __future__ import annotations

import pytest

from controller.planning.tree_planner import TreeKind
from protocol import jobs_pb2
from tests.impaired_links import Impairments
from tests.packet.jobs.protocol_run import network_of, start


@pytest.mark.parametrize(
    ("slices", "servers", "text"),
    [
        ([1 << 31], [0], "slice 2147483648 moved to server 0 of"),
        ([0], [7], "is at server 7, and there are 2"),
        ([1, 0], [0, 0], "moved slices"),
        ([0, 1], [0], "zip"),
    ],
)
def test_impossible_maps_are_refused(slices: list[int], servers: list[int], text: str) -> None:
    network = network_of("two racks", 1, Impairments())
    job = start(network, "two racks", TreeKind.NONE, 8)
    moved = jobs_pb2.Moved(slices=slices, servers=servers)
    remap = jobs_pb2.Remap(number=5, moved=moved, from_round=1 << 60, holds=True)
    for member in (*job.members, *job.server_members):
        instruction = jobs_pb2.Instruction(epoch=member.follower.epoch, remap=remap)
        with pytest.raises(ValueError, match=text):
            member.follower.answer(instruction)
