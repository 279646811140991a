# SPDX-License-Identifier: Apache-2.0
"""Registers, counters, hashes, exit, assertions and messages."""

from __future__ import annotations

import struct
import zlib

import pytest

from switch.pipeline import Pipeline
from tests.p4 import corpus

WRITE, READ_WIDE, READ_NARROW, READ_SIGNED, LOG = range(5)


@pytest.fixture
def pipeline() -> Pipeline:
    return corpus("state")


def ask(pipeline: Pipeline, op: int, index: int, value: int = 0) -> bytes:
    sent = request(op, index, value)
    [(port, out)] = pipeline.inject(3, sent)
    assert port == 3
    assert out[:11] == sent
    return out[11:]


def request(op: int, index: int, value: int = 0) -> bytes:
    return bytes([op, index]) + value.to_bytes(9, "big")


def read(pipeline: Pipeline, op: int, index: int) -> int:
    return int.from_bytes(ask(pipeline, op, index)[:9], "big")


def test_registers_of_every_width_keep_what_fits(pipeline: Pipeline) -> None:
    value = 0xFEDCBA98_76543210_AB
    ask(pipeline, WRITE, 5, value)
    assert read(pipeline, READ_WIDE, 5) == value == pipeline.register("Enter.wide", 5)
    assert read(pipeline, READ_NARROW, 5) == value & 0xFFF == pipeline.register("Enter.narrow", 5)
    low = value & 0xFFFFF
    assert pipeline.register("Enter.signed", 5) == low
    signed = low - (1 << 20) if low >> 19 else low
    assert read(pipeline, READ_SIGNED, 5) == signed & ((1 << 72) - 1)
    assert read(pipeline, READ_WIDE, 4) == 0


def test_a_register_written_by_control_is_read_by_the_program(pipeline: Pipeline) -> None:
    pipeline.set_register("Enter.wide", 2, (1 << 72) - 2)
    assert read(pipeline, READ_WIDE, 2) == (1 << 72) - 2
    with pytest.raises(ValueError, match="does not fit in 12 bits"):
        pipeline.set_register("Enter.narrow", 2, 1 << 12)
    with pytest.raises(IndexError, match=r"cells 0 \.\. 7"):
        pipeline.register("Enter.narrow", 8)
    with pytest.raises(KeyError, match=r"Enter\.narrow"):
        pipeline.register("narrow", 0)


def test_indices_out_of_range_read_zero_and_are_counted(pipeline: Pipeline) -> None:
    assert read(pipeline, READ_WIDE, 8) == 0
    assert read(pipeline, READ_WIDE, 255) == 0
    # The counter's index is out of range, too.
    assert pipeline.stats()["out_of_range"] == 4


def test_counters_count_packets_and_bytes_as_received(pipeline: Pipeline) -> None:
    for index in (1, 1, 2):
        ask(pipeline, READ_WIDE, index)
    size = len(request(READ_WIDE, 1))
    assert pipeline.counter("Enter.seen", 1) == (2, 2 * size)
    assert pipeline.counter("Enter.seen", 2) == (1, size)
    pipeline.set_counter("Enter.seen", 2, 10, 5)
    ask(pipeline, READ_WIDE, 2)
    assert pipeline.counter("Enter.seen", 2) == (11, 5 + size)


def test_exit_ends_the_control(pipeline: Pipeline) -> None:
    assert ask(pipeline, WRITE, 1, 12345) == bytes(27)  # no hash was computed


def crc16_arc(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc


def internet_checksum(data: bytes) -> int:
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def test_hashes() -> None:
    assert crc16_arc(b"123456789") == 0xBB3D  # the check value of the CRC catalogue
    pipeline = corpus("state")
    for value in (0, 1, 0x0123456789ABCDEF01, (1 << 72) - 1):
        data = request(LOG, 0x6C, value)
        answer = ask(pipeline, LOG, 0x6C, value)
        crc32, crc16, csum16, xor16, identity = struct.unpack(">IHHHQ", answer[9:])
        assert crc32 == zlib.crc32(data)
        assert crc16 == crc16_arc(data)
        assert csum16 == internet_checksum(data)
        # index, then the low and high half of op: 2 bytes, modulo 1000, plus 10
        swapped = (LOG & 15) << 4 | LOG >> 4
        assert xor16 == (0x6C << 8 | swapped) % 1000 + 10
        assert identity == (value & ((1 << 64) - 1)) % ((1 << 64) - 1)


def test_messages_and_assertions(pipeline: Pipeline) -> None:
    lines: list[str] = []
    pipeline.set_log(lines.append)
    ask(pipeline, LOG, 0xFE, (1 << 72) - 1)
    assert lines == ["value 4722366482869645213695 of -2"]
    lines.clear()
    assert pipeline.inject(3, request(LOG, 1, 7)) == []
    assert pipeline.stats()["assertions"] == 1
    assert lines[0] == "value 7 of 1"
    assert "state.p4" in lines[1]
    assert "assert" in lines[1]
    pipeline.set_log(None)
    ask(pipeline, LOG, 1, 8)
    assert len(lines) == 2
