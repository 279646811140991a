# SPDX-License-Identifier: Apache-2.0
"""Tests combinations of features: headers that stay in the frame with copies; a table with a
selector, a meter, counters and hit times, while entries, members and groups change under one
flow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from switch.pipeline import Pipeline
from switch.pipeline.action_profiles import ProfileState
from switch.pipeline.keys import Reference
from switch.pipeline.meters_and_digests import Externs, Rates
from tests.p4 import corpus

KEYS, SPREAD = "Enter.keys", "Enter.spread"
BLOCK, HEAD = 128, 16  # bytes
COLOR, MEMBER = 11, 12  # bytes of a frame
GREEN, RED = 0, 2
MULTICAST = 1
ADD, CHANGE = 0x10, 0x40


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    with corpus("blocks") as made:
        yield made


def frame(ingress: int, egress: int, blocks: int, *, key: int = 0, payload: bytes = b"") -> bytes:
    """For port 1, group 1."""
    return bytes([ingress, egress, 1, 1, 1, 0, key, blocks]) + bytes(8) + payload


def test_copies_are_isolated_from_earlier_packets(pipeline: Pipeline) -> None:
    """Of a header that is not there egress reads zeros, whatever another packet had there."""
    pipeline.set_multicast_group(1, [(port, port) for port in range(1, 5)])
    own = (7 << 512).to_bytes(BLOCK, "big")
    for secret in (b"\xaa", b"\x55"):
        with_both = frame(MULTICAST, CHANGE, 2, payload=bytes(BLOCK) + secret * BLOCK)
        outputs = pipeline.inject(0, with_both)
        assert [out[HEAD:] for _, out in outputs] == [secret * 2 * BLOCK] * 4
        without = frame(MULTICAST, ADD | CHANGE, 7, payload=b"end")
        assert [out[HEAD:] for _, out in pipeline.inject(0, without)] == [own + b"end"] * 4


def test_flow_follows_changes_of_its_action_profile(pipeline: Pipeline) -> None:
    """The last key is kept from packet to packet, what was found by it never longer than it holds:
    through members, groups and meters, entries that come and go, and a table that moves."""
    profile, externs = ProfileState(pipeline, SPREAD), Externs(pipeline)
    sent = frame(0, 0, 0, key=9)

    def seen(now_us: int = 1) -> tuple[int, int, int]:
        """(port, color, member)"""
        [(port, out)] = pipeline.inject(0, sent, now_us)
        return port, out[COLOR], out[MEMBER]

    assert seen() == (1, GREEN, 0)
    profile.set_member(3, "Enter.mark", [33])
    handle = pipeline.insert(KEYS, [9], Reference(3))
    assert seen() == (1, GREEN, 33)
    profile.set_member(3, "Enter.send", [6, 34])
    assert seen() == (6, GREEN, 34)
    profile.set_member(70, "Enter.mark", [70])  # members move
    pipeline.modify(KEYS, handle, Reference(0, group=True))
    assert seen() == (1, GREEN, 0)
    profile.set_group(0, [70])
    assert seen() == (1, GREEN, 70)
    profile.set_group(0, [3])
    assert seen() == (6, GREEN, 34)
    externs.set_direct_meter(KEYS, handle, Rates(0, 1, 0, 1))
    assert [seen(50), seen(60)] == [(6, GREEN, 34), (6, RED, 34)]
    others = []
    for key in (one for one in range(256) if one != 9):
        others.append(pipeline.insert(KEYS, [key], Reference(70)))
        assert seen(70) == (6, RED, 34)
    assert externs.last_hits(KEYS, [handle, others[0]]) == [70, 0]
    hits = 7 + len(others)
    assert pipeline.direct_counter(KEYS, handle) == (hits, hits * HEAD)
    externs.set_direct_meter(KEYS, handle, None)
    assert seen(80) == (6, GREEN, 34)
    profile.delete_group(0)
    assert seen(90) == (1, GREEN, 0)
    pipeline.delete(KEYS, handle)
    assert seen(100) == (1, GREEN, 0)
    again = pipeline.insert(KEYS, [9], Reference(70))
    assert externs.last_hits(KEYS, [handle, again]) == [None, 0]
    assert seen(110) == (1, GREEN, 70)
    assert externs.direct_meter(KEYS, again) is None
