# SPDX-License-Identifier: GPL-2.0-only
"""Tests the scapy layer against the numpy codec, byte for byte."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.packet import Raw

from protocol.header import (
    HEADER,
    SERVER_PORTS,
    VERSION,
    Batch,
    Op,
    carries_payload,
    decode,
    encode,
)
from protocol.header import peer_array as peers
from protocol.payloads import sum_checks
from protocol.scapy_layer import FLAG_NAMES, Aggregation

LANES = 8
PEER = (0x0A000001, 40000)

u8, u16, u32 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32))
i8, i32 = (st.integers(-(2**bits), 2**bits - 1) for bits in (7, 31))

headers = st.fixed_dictionaries(
    {
        "op": st.sampled_from(list(Op)),
        "flags": u8,
        "job": u16,
        "epoch": u16,
        "stream": u8,
        "sender": u8,
        "seq": u32,
        "chunk": u32,
        "children": u32,
        "workers": u16,
        "exponent": i8,
        "max_exponent": i8,
        "lanes": st.one_of(st.just(0), st.integers(1, LANES)),
        "node": u16,
        "checksum": u32,
    }
)
words = st.lists(i32, min_size=LANES, max_size=LANES)


def batch_of(fields: dict[str, int], payload: list[int]) -> Batch:
    """One packet as the numpy codec holds it."""
    header = np.zeros(1, HEADER)
    for name, value in fields.items():
        if name != "op":
            header[name] = value
    header["version_op"] = VERSION << 4 | fields["op"]
    return Batch(header, np.array([payload], ">i4"), carries_payload(header), peers([PEER]))


def floats(payload: list[int]) -> list[float]:
    return list(struct.unpack(f"!{LANES}f", struct.pack(f"!{LANES}i", *payload)))


@given(headers, words)
def test_codec_and_layer_write_the_same_bytes(fields: dict[str, int], payload: list[int]) -> None:
    payload = [0 if np.isnan(x) else word for x, word in zip(floats(payload), payload, strict=True)]
    batch = batch_of(fields, payload)
    packet = Aggregation(**fields, values=payload, floats=floats(payload))
    assert bytes(packet) == encode(batch)[0]


@given(headers, words)
def test_the_layer_reads_what_the_codec_writes(fields: dict[str, int], payload: list[int]) -> None:
    batch = batch_of(fields, payload)
    [datagram] = encode(batch)
    packet = Aggregation(datagram)
    assert packet.version == VERSION
    assert {name: int(packet.getfieldval(name)) for name in fields} == fields
    if not batch.full[0]:
        assert packet.has_payload() is False
    elif packet.is_direct():
        np.testing.assert_array_equal(packet.floats, floats(payload))
    else:
        assert packet.values == payload
    assert not packet.payload


@given(headers, words)
def test_the_codec_reads_what_the_layer_writes(fields: dict[str, int], payload: list[int]) -> None:
    expected = batch_of(fields, payload)
    datagram = bytes(Aggregation(encode(expected)[0]))
    batch, malformed = decode([datagram], [PEER], LANES)
    assert malformed == 0
    assert batch.headers.tobytes() == expected.headers.tobytes()
    assert batch.full.tolist() == expected.full.tolist()
    assert batch.payloads[batch.full].tobytes() == expected.payloads[expected.full].tobytes()


@settings(max_examples=50)
@given(headers.map(lambda fields: {**fields, "op": Op.CONTRIBUTE, "flags": 0}), words)
def test_a_checksum_left_out_is_the_one_that_receivers_expect(
    fields: dict[str, int], payload: list[int]
) -> None:
    del fields["checksum"]
    batch, malformed = decode([bytes(Aggregation(**fields, values=payload))], [PEER], LANES)
    assert malformed == 0
    assert sum_checks(batch.headers, batch.payloads, batch.full).all()


def test_lanes_left_out_count_the_values() -> None:
    packet = Aggregation(bytes(Aggregation(job=1, values=[1, -2, 3])))
    assert (packet.lanes, packet.values) == (3, [1, -2, 3])


def test_every_flag_is_shown_by_name() -> None:
    for bit, name in enumerate(FLAG_NAMES):
        assert str(Aggregation(flags=1 << bit).flags) == name
        assert int(Aggregation(flags=name).flags) == 1 << bit
    assert "DIRECT" in Aggregation(flags="DIRECT+ECN").summary()


PORTS = [{}, {"sport": 40000}, {"dport": 40000}]
PORTS += [{"sport": 40000, "dport": 47104}, {"sport": 47119, "dport": 40000}]


@pytest.mark.parametrize("ports", PORTS)
def test_either_port_selects_dissector(ports: dict[str, int]) -> None:
    packet = IP(bytes(IP(src="10.0.0.1", dst="10.0.0.9") / UDP(**ports) / Aggregation(job=7)))
    assert packet[Aggregation].job == 7
    assert {packet[UDP].sport, packet[UDP].dport} & set(SERVER_PORTS)


def test_bytes_behind_a_header_without_payload_stay_apart() -> None:
    packet = Aggregation(bytes(Aggregation(op=Op.QUERY, lanes=0)) + b"junk")
    assert packet[Raw].load == b"junk"
