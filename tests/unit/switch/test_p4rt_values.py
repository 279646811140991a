# SPDX-License-Identifier: Apache-2.0
"""Tests bytestrings against the two tables of the P4Runtime spec, section "Bytestrings"."""

import pytest
from google.rpc import code_pb2
from hypothesis import given
from hypothesis import strategies as st

from switch.p4runtime.errors import P4RuntimeError
from switch.p4runtime.p4info.values import (
    DataCodec,
    decode_signed,
    decode_unsigned,
    encode_signed,
    encode_unsigned,
)
from switch.p4runtime.stubs import p4data_pb2, p4types_pb2


@pytest.mark.parametrize(
    ("width", "value", "data", "symmetric"),
    [
        (8, 99, b"\x63", True),
        (16, 99, b"\x00\x63", False),
        (16, 99, b"\x63", True),
        (16, 12388, b"\x30\x64", True),
        (16, 12388, b"\x00\x30\x64", False),
        (12, 99, b"\x00\x63", False),
        (12, 99, b"\x63", True),
        (12, 99, b"\x00\x00\x63", False),
    ],
)
def test_valid_unsigned(width, value, data, symmetric):
    assert decode_unsigned(data, width, "x") == value
    assert (encode_unsigned(value) == data) is symmetric


@pytest.mark.parametrize(
    ("width", "value", "data", "symmetric"),
    [
        (8, 99, b"\x63", True),
        (8, -99, b"\x9d", True),
        (8, -99, b"\xff\x9d", False),
        (12, -739, b"\xfd\x1d", True),
        (16, 0, b"\x00\x00", False),
        (16, 0, b"\x00", True),
    ],
)
def test_valid_signed(width, value, data, symmetric):
    assert decode_signed(data, width, "x") == value
    assert (encode_signed(value) == data) is symmetric


@pytest.mark.parametrize(
    ("decode", "width", "data"),
    [
        (decode_unsigned, 8, b"\x01\x63"),
        (decode_unsigned, 8, b""),
        (decode_unsigned, 16, b"\x01\x00\x63"),
        (decode_unsigned, 12, b"\x10\x63"),
        (decode_unsigned, 12, b"\x01\x00\x63"),
        (decode_unsigned, 12, b"\x00\x40\x63"),
        (decode_signed, 8, b"\x00\x9d"),
        (decode_signed, 12, b"\x8d\x1d"),
        (decode_signed, 16, b""),
    ],
)
def test_invalid_is_out_of_range(decode, width, data):
    with pytest.raises(P4RuntimeError) as refused:
        decode(data, width, "x")
    assert refused.value.code == code_pb2.OUT_OF_RANGE


@given(st.integers(1, 300).flatmap(lambda w: st.tuples(st.just(w), st.integers(0, 2**w - 1))))
def test_unsigned_round_trip_is_shortest(width_and_value):
    width, value = width_and_value
    data = encode_unsigned(value)
    assert decode_unsigned(data, width, "x") == value
    assert len(data) == 1 or data[0] != 0


@given(
    st.integers(1, 300).flatmap(
        lambda w: st.tuples(st.just(w), st.integers(-(2 ** (w - 1)), 2 ** (w - 1) - 1))
    )
)
def test_signed_round_trip_is_shortest(width_and_value):
    width, value = width_and_value
    data = encode_signed(value)
    assert decode_signed(data, width, "x") == value
    if len(data) > 1:  # the first byte is not mere sign extension
        assert (data[0], data[1] >> 7) not in ((0x00, 0), (0xFF, 1))


def _spec(**kind):
    return p4types_pb2.P4DataTypeSpec(**kind)


def _bitstring(**kind):
    return _spec(bitstring=p4types_pb2.P4BitstringLikeTypeSpec(**kind))


def test_register_data_of_signed_type_keeps_its_sign():
    spec = _bitstring(int=p4types_pb2.P4IntTypeSpec(bitwidth=12))
    codec = DataCodec(spec, p4types_pb2.P4TypeInfo(), "r")
    bits = codec.decode(p4data_pb2.P4Data(bitstring=b"\xfd\x1d"))
    assert bits == 0xD1D
    assert codec.encode(bits).bitstring == b"\xfd\x1d"


def test_register_data_of_another_kind_is_refused():
    spec = _bitstring(bit=p4types_pb2.P4BitTypeSpec(bitwidth=8))
    codec = DataCodec(spec, p4types_pb2.P4TypeInfo(), "r")
    with pytest.raises(P4RuntimeError) as refused:
        codec.decode(p4data_pb2.P4Data(bool=True))
    assert refused.value.code == code_pb2.INVALID_ARGUMENT


def test_register_data_of_a_struct_is_unimplemented():
    with pytest.raises(P4RuntimeError) as refused:
        DataCodec(
            _spec(struct=p4types_pb2.P4NamedType(name="pair_t")), p4types_pb2.P4TypeInfo(), "r"
        )
    assert refused.value.code == code_pb2.UNIMPLEMENTED
