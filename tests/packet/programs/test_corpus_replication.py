# SPDX-License-Identifier: Apache-2.0
"""Tests multicast, clones, resubmission, recirculation and truncation (simple_switch.md)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest

from switch.pipeline import EntryNotFound, Pipeline, PipelineError
from tests.p4 import corpus

FORWARD, MULTICAST, CLONE, EGRESS_CLONE, RESUBMIT, RECIRCULATE, TRUNCATE, DROP = range(8)
CLONE_AND_DROP, ENDLESS, TRUNCATE_AND_RECIRCULATE = 8, 9, 10
NORMAL, IS_CLONE, IS_EGRESS_CLONE, IS_RECIRCULATED, IS_REPLICA = 0, 1, 2, 4, 5
HEAD = struct.Struct(">BBBBBBHHHI")


@dataclass(frozen=True)
class Trace:
    op: int
    argument: int
    rounds: int
    kept: int
    lost: int
    kind: int
    instance: int
    ingress_port: int
    egress_port: int
    length: int
    payload: bytes


def frame(op: int, argument: int = 0, payload: bytes = b"payload") -> bytes:
    return HEAD.pack(op, argument, 0, 0, 0, 0, 0, 0, 0, 0) + payload


def seen(outputs: list[tuple[int, bytes]]) -> list[tuple[int, Trace]]:
    return [(port, Trace(*HEAD.unpack_from(out), out[HEAD.size :])) for port, out in outputs]


@pytest.fixture
def pipeline() -> Pipeline:
    return corpus("replication")


def test_unicast(pipeline: Pipeline) -> None:
    sent = frame(FORWARD)
    assert seen(pipeline.inject(6, sent)) == [
        (1, Trace(FORWARD, 0, 1, 0, 0x55, NORMAL, 0, 6, 1, len(sent), b"payload"))
    ]


def test_multicast_reaches_every_replica_in_order(pipeline: Pipeline) -> None:
    pipeline.set_multicast_group(7, [(3, 1), (4, 2), (3, 9)])
    sent = frame(MULTICAST, 7)
    assert seen(pipeline.inject(6, sent)) == [
        (port, Trace(MULTICAST, 7, 1, 0, 0x55, IS_REPLICA, rid, 6, port, len(sent), b"payload"))
        for port, rid in ((3, 1), (4, 2), (3, 9))
    ]
    pipeline.set_multicast_group(7, [(5, 1)])
    assert [port for port, _ in pipeline.inject(6, sent)] == [5]
    pipeline.delete_multicast_group(7)
    assert pipeline.inject(6, sent) == []
    assert pipeline.stats()["no_group"] == 1
    with pytest.raises(EntryNotFound):
        pipeline.delete_multicast_group(7)


@pytest.mark.parametrize("size", [0, 10])
def test_truncate_does_not_cut_what_recirculates(pipeline: Pipeline, size: int) -> None:
    # BMv2 makes a copy of the packet, as for clones (simple_switch.cpp, `clone_no_phv_ptr`).
    sent = frame(TRUNCATE_AND_RECIRCULATE, size)
    [(port, received)] = seen(pipeline.inject(6, sent))
    assert (port, received.rounds, received.payload) == (1, 2, b"payload")
    assert received.length == len(sent)


def test_an_empty_group_sends_nothing(pipeline: Pipeline) -> None:
    pipeline.set_multicast_group(7, [])
    assert pipeline.inject(6, frame(MULTICAST, 7)) == []


def test_ingress_clone_is_the_packet_as_it_came(pipeline: Pipeline) -> None:
    pipeline.set_clone_session(2, [(8, 3)])
    (clone_port, clone), (port, original) = seen(pipeline.inject(6, frame(CLONE, 2)))
    # Not counted by ingress, other metadata lost; ingress_port is metadata, too.
    assert (clone_port, clone.kind, clone.rounds) == (8, IS_CLONE, 0)
    assert (clone.kept, clone.lost, clone.ingress_port, clone.instance) == (0xAA, 0, 0, 3)
    assert clone.length == len(frame(CLONE, 2))
    assert (port, original.kind, original.rounds, original.kept) == (1, NORMAL, 1, 0xAA)
    assert clone.payload == original.payload == b"payload"


def test_clone_of_a_dropped_packet_leaves(pipeline: Pipeline) -> None:
    pipeline.set_clone_session(2, [(8, 0), (9, 0)])
    assert [port for port, _ in pipeline.inject(6, frame(CLONE_AND_DROP, 2))] == [8, 9]


def test_clone_session_cuts_its_copies(pipeline: Pipeline) -> None:
    pipeline.set_clone_session(2, [(8, 0)], truncate=HEAD.size + 3)
    (_, clone), (_, original) = pipeline.inject(6, frame(CLONE, 2))
    assert (clone[HEAD.size :], original[HEAD.size :]) == (b"pay", b"payload")


def test_unknown_session_makes_no_clone(pipeline: Pipeline) -> None:
    assert [port for port, _ in pipeline.inject(6, frame(CLONE, 3))] == [1]
    assert pipeline.stats()["no_session"] == 1


def test_egress_clone_is_the_packet_as_it_leaves(pipeline: Pipeline) -> None:
    pipeline.set_clone_session(2, [(8, 0)])
    (port, original), (clone_port, clone) = seen(pipeline.inject(6, frame(EGRESS_CLONE, 2)))
    assert (port, original.kind, original.kept) == (1, NORMAL, 0xBB)
    assert (clone_port, clone.kind, clone.kept, clone.lost) == (8, IS_EGRESS_CLONE, 0xBB, 0)
    assert (clone.rounds, clone.egress_port, clone.payload) == (1, 8, b"payload")


def test_resubmitted_packet_is_unchanged_but_for_kept_metadata(pipeline: Pipeline) -> None:
    [(port, trace)] = seen(pipeline.inject(6, frame(RESUBMIT, 3)))
    assert (port, trace.kept, trace.rounds, trace.kind) == (1, 3, 1, NORMAL)


def test_recirculated_packet_is_the_one_that_left(pipeline: Pipeline) -> None:
    [(port, trace)] = seen(pipeline.inject(6, frame(RECIRCULATE, 3)))
    assert (port, trace.kept, trace.rounds) == (1, 3, 4)
    assert (trace.ingress_port, trace.length) == (0, len(frame(RECIRCULATE)))


def test_recirculated_packets_queue_behind_a_batch(pipeline: Pipeline) -> None:
    frames = [frame(RECIRCULATE, 1, b"a"), frame(FORWARD, 0, b"b"), frame(FORWARD, 0, b"c")]
    outputs = seen(pipeline.inject_batch([1, 2, 3], frames))
    assert [trace.payload for _, trace in outputs] == [b"b", b"c", b"a"]


def test_endless_recirculation_is_an_error(pipeline: Pipeline) -> None:
    with pytest.raises(PipelineError, match="65536"):
        pipeline.inject(1, frame(ENDLESS))
    assert len(pipeline.inject(1, frame(FORWARD))) == 1


def test_truncate_and_egress_drop(pipeline: Pipeline) -> None:
    [(_, out)] = pipeline.inject(1, frame(TRUNCATE, 4, bytes(100)))
    assert len(out) == 4
    assert pipeline.inject(1, frame(TRUNCATE, 0, bytes(100))) == []
    [(_, out)] = pipeline.inject(1, frame(TRUNCATE, 200, bytes(100)))
    assert len(out) == HEAD.size + 100
    assert pipeline.inject(1, frame(DROP)) == []
    assert pipeline.stats()["dropped"] == 1


def test_an_empty_pool_loses_copies_and_counts_them() -> None:
    pipeline = corpus("replication", pool=2)
    pipeline.set_multicast_group(7, [(port, 0) for port in range(1, 6)])
    outputs = pipeline.inject(6, frame(MULTICAST, 7))
    assert len(outputs) + pipeline.stats()["no_buffer"] == 5
    assert pipeline.stats()["no_buffer"] > 0
    assert len(pipeline.inject(6, frame(FORWARD))) == 1
