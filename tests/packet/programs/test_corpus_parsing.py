# SPDX-License-Identifier: Apache-2.0
"""Tests the parser: keys with masks and ranges, stacks, lookahead, advance, errors."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest

from switch.pipeline import Pipeline
from tests.p4 import corpus

NO_ERROR, TOO_SHORT, OUT_OF_BOUNDS = range(3)


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return corpus("parsing")


def start(kind: int, tag: int, length: int = 0) -> bytes:
    return struct.pack(">HH", kind << 12 | length, tag)


def label(value: int, bottom: int, ttl: int = 9) -> bytes:
    return struct.pack(">I", value << 12 | bottom << 8 | ttl)


def found(pipeline: Pipeline, frame: bytes) -> tuple[int, int, int, int, int, bytes]:
    """(error, labels, first label, peeked, equal, the frame behind what was found)."""
    [(_, out)] = pipeline.inject(1, frame)
    return (*struct.unpack(">BBIBB", out[:8]), out[8:])


def test_labels(pipeline: Pipeline) -> None:
    one = start(1, 0x8847) + label(77, 1) + b"rest"
    # one label becomes two: pushed, copied, its TTL reduced; the pushed one in between is invalid
    expected = start(1, 0x8847) + label(77, 1, 8) + label(77, 1) + b"rest"
    assert found(pipeline, one) == (NO_ERROR, 1, 77, 0, 0, expected)
    two = start(1, 0x8847) + label(5, 0) + label(6, 1) + b"rest"
    popped = start(1, 0x8847) + label(6, 1) + b"rest"
    assert found(pipeline, two) == (NO_ERROR, 2, 5, 0, 0, popped)


def test_equal_headers(pipeline: Pipeline) -> None:
    frame = start(1, 0x8847) + label(5, 0) * 2 + label(6, 1)
    assert found(pipeline, frame)[4] == 1


def test_a_full_stack_is_an_error_and_the_packet_goes_on(pipeline: Pipeline) -> None:
    frame = start(1, 0x8847) + label(5, 0) + label(6, 0) + label(7, 0) + label(8, 1)
    error, labels, first, _, _, out = found(pipeline, frame)
    assert (error, labels, first) == (OUT_OF_BOUNDS, 2, 5)
    assert out == start(1, 0x8847) + frame[8:]


def test_short_packets_keep_what_was_parsed(pipeline: Pipeline) -> None:
    assert found(pipeline, b"") == (TOO_SHORT, 0, 0, 0, 0, b"")
    assert found(pipeline, b"\x10\x00\x88") == (TOO_SHORT, 0, 0, 0, 0, b"\x10\x00\x88")
    cut = start(1, 0x8847) + label(5, 0) + b"\x00\x00\x01"
    error, labels, first, _, _, out = found(pipeline, cut)
    assert (error, labels, first) == (TOO_SHORT, 1, 5)
    assert out.endswith(b"\x00\x00\x01")


def test_several_keys_masks_and_ranges(pipeline: Pipeline) -> None:
    def tail_wanted(kind: int, tag: int) -> bool:
        """With too few bytes for the tail, an error shows that the parser went there."""
        return found(pipeline, start(kind, tag) + b"xx")[0] == TOO_SHORT

    assert tail_wanted(3, 0x1FF)
    assert tail_wanted(3, 0x5123)
    assert not tail_wanted(3, 0x2FF)
    for kind, tag, goes in ((4, 0, 1), (6, 0xFF, 1), (7, 0, 0), (5, 0x100, 0), (1, 0x8848, 0)):
        frame = start(kind, tag) + b"\xab\xcd\xef"
        # peeked is the low byte of the next 12 bits
        assert found(pipeline, frame)[3] == (0xBC if goes else 0)


def test_advance(pipeline: Pipeline) -> None:
    skipped = start(2, 7, 5) + b"12345" + b"abc" + b"rest"
    # what was advanced over is gone
    assert found(pipeline, skipped)[5] == start(2, 7, 5) + b"abcrest"
    assert found(pipeline, start(2, 7, 6) + b"12345")[0] == TOO_SHORT
    assert found(pipeline, start(2, 7, 4095) + b"12345")[0] == TOO_SHORT


SPIN, TURN, WALK = 1, 2, 3


@pytest.mark.parametrize("what", [SPIN, TURN])
def test_parser_loop_ends_with_counted_error(what: int) -> None:
    spinning = corpus("spinning")
    [(port, out)] = spinning.inject(3, bytes([what, 0, 0, 0]) + b"\xffrest")
    assert (port, out[:2], out[4:]) == (3, bytes([what, 2]), b"\xffrest")
    assert spinning.stats()["parser_timeouts"] == 1
    [(_, out)] = spinning.inject(3, bytes([what, 0, 0, 0]) + b"\x0frest")
    assert out[1] == NO_ERROR
    assert spinning.stats()["parser_timeouts"] == 1


def test_a_parser_may_go_through_the_longest_packet_byte_by_byte() -> None:
    spinning = corpus("spinning")
    [(_, out)] = spinning.inject(1, bytes([WALK, 0, 0, 0]) + b"\1" * 16379 + b"\0")
    assert struct.unpack(">BBH", out) == (WALK, NO_ERROR, 16380)
    assert spinning.stats()["parser_timeouts"] == 0


def random_frames(rng: random.Random, count: int) -> Iterator[bytes]:
    """Frames that reach every state, with whatever behind, often cut."""
    for _ in range(count):
        kind, tag = rng.randrange(8), rng.choice([0x8847, 0x100, 7, rng.getrandbits(16)])
        head = start(kind, tag, rng.choice([0, 3, 9, 4095]))
        yield (head + rng.randbytes(rng.randrange(40)))[: rng.randrange(48)]


def test_random_bytes_never_lose_a_packet(pipeline: Pipeline) -> None:
    frames = list(random_frames(random.Random(3), 2000))
    assert len(pipeline.inject_batch([1] * len(frames), frames)) == len(frames)
