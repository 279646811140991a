# SPDX-License-Identifier: Apache-2.0
"""Encodes and decodes P4 values: bytestrings (P4Runtime spec, "Bytestrings") and P4Data.

Sent strings are canonical: the shortest one that holds the value, so that a written message reads
back the same. Received strings may be longer if the value fits.
"""

from __future__ import annotations

from collections.abc import Iterator

from switch.p4runtime.errors import invalid_argument, out_of_range, unimplemented
from switch.p4runtime.stubs import p4data_pb2, p4types_pb2


def encode_unsigned(value: int) -> bytes:
    """Encodes a bit<W> value canonically: big endian, shortest, zero is one byte."""
    return value.to_bytes(max((value.bit_length() + 7) // 8, 1), "big")


def decode_unsigned(data: bytes, width: int, what: str) -> int:
    """Decodes a bit<width> bytestring of any length.

    Raises OUT_OF_RANGE for an empty string or a value that needs more than `width` bits.
    """
    if not data:
        raise out_of_range(f"{what}: the value is empty; zero is written as one zero byte")
    value = int.from_bytes(data, "big")
    if value.bit_length() > width:
        raise out_of_range(f"{what}: 0x{data.hex()} does not fit {width} bits")
    return value


def encode_signed(value: int) -> bytes:
    """Encodes an int<W> value canonically: two's complement, shortest."""
    magnitude = value if value >= 0 else ~value
    return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def decode_signed(data: bytes, width: int, what: str) -> int:
    """Decodes an int<width> bytestring of any length with sign extension.

    Raises OUT_OF_RANGE for an empty string or a value outside of int<width>.
    """
    if not data:
        raise out_of_range(f"{what}: the value is empty; zero is written as one zero byte")
    value = int.from_bytes(data, "big", signed=True)
    if not -(1 << (width - 1)) <= value < 1 << (width - 1):
        raise out_of_range(f"{what}: {value} does not fit int<{width}>")
    return value


def unsigned_of(value: int, width: int) -> int:
    """Returns the bits of an int<width> value as an unsigned number (as registers hold them)."""
    return value & ((1 << width) - 1)


def signed_of(bits: int, width: int) -> int:
    """Returns the int<width> value of these bits."""
    return bits - (1 << width) if bits >> (width - 1) else bits


class DataCodec:
    """Converts P4Data of one P4 type (spec, "Representation of Arbitrary P4 Types") to and from
    unsigned bits.

    Supports the types of v1model registers that are one number: bit<W>, int<W>, bool and
    serializable enums. The constructor raises UNIMPLEMENTED for others.
    """

    def __init__(
        self, spec: p4types_pb2.P4DataTypeSpec, types: p4types_pb2.P4TypeInfo, what: str
    ) -> None:
        self.what = what
        self.signed = False
        kind = spec.WhichOneof("type_spec")
        if kind == "new_type" and spec.new_type.name in types.new_types:
            spec = types.new_types[spec.new_type.name].original_type
            kind = spec.WhichOneof("type_spec")
        if kind == "bitstring" and spec.bitstring.WhichOneof("type_spec") in ("bit", "int"):
            self.field = "bitstring"
            self.signed = spec.bitstring.HasField("int")
            inner = spec.bitstring.int if self.signed else spec.bitstring.bit
            self.width = int(inner.bitwidth)
        elif kind == "bool":
            self.field, self.width = "bool", 1
        elif kind == "serializable_enum":
            self.field = "enum_value"
            enum = types.serializable_enums[spec.serializable_enum.name]
            self.width = int(enum.underlying_type.bitwidth)
        else:
            raise unimplemented(
                f"{what} holds P4Data of kind {kind}; this target reads and writes bit<W>, "
                f"int<W>, bool and serializable enums"
            )

    def decode(self, data: p4data_pb2.P4Data) -> int:
        """Returns the bits of the value. Raises INVALID_ARGUMENT for P4Data of another kind than
        the type's."""
        kind = data.WhichOneof("data")
        if kind != self.field:
            raise invalid_argument(f"{self.what}: P4Data has {kind}, the type is {self.field}")
        if kind == "bool":
            return int(data.bool)
        value = data.bitstring if kind == "bitstring" else data.enum_value
        if self.signed:
            return unsigned_of(decode_signed(value, self.width, self.what), self.width)
        return decode_unsigned(value, self.width, self.what)

    def encode(self, bits: int) -> p4data_pb2.P4Data:
        """Returns P4Data with the canonical bytestring."""
        data = p4data_pb2.P4Data()
        self.fill(data, bits)
        return data

    def fill(self, data: p4data_pb2.P4Data, bits: int) -> None:
        """Encodes into an empty P4Data."""
        if self.field == "bool":
            data.bool = bool(bits)
        elif self.field == "enum_value":
            data.enum_value = encode_unsigned(bits)
        elif self.signed:
            data.bitstring = encode_signed(signed_of(bits, self.width))
        else:
            data.bitstring = encode_unsigned(bits)


class MessageCodec:
    """Encodes a digest's messages as P4Data: a value, or structs and tuples of values, from
    consecutive fields.

    widths: of the fields. The constructor raises UNIMPLEMENTED for other types.
    """

    def __init__(
        self, spec: p4types_pb2.P4DataTypeSpec, types: p4types_pb2.P4TypeInfo, what: str
    ) -> None:
        self._kind = spec.WhichOneof("type_spec")
        self._parts: list[MessageCodec] = []
        self._own: DataCodec | None = None
        if self._kind == "struct":
            members = types.structs[spec.struct.name].members
            self._parts = [
                MessageCodec(one.type_spec, types, f"{what}.{one.name}") for one in members
            ]
        elif self._kind == "tuple":
            self._parts = [MessageCodec(one, types, what) for one in spec.tuple.members]
        else:
            self._own = DataCodec(spec, types, what)
        self.widths: list[int] = (
            [width for one in self._parts for width in one.widths]
            if self._own is None
            else [self._own.width]
        )

    def fill(self, data: p4data_pb2.P4Data, values: Iterator[int]) -> None:
        """Writes the next value for each field, as unsigned numbers, into an empty P4Data."""
        if self._own is not None:
            self._own.fill(data, next(values))
            return
        made = getattr(data, str(self._kind))
        made.SetInParent()
        for one in self._parts:
            one.fill(made.members.add(), values)
