# SPDX-License-Identifier: Apache-2.0
"""Generates C for calculations (hashes) and for the checksums that use them.

A calculation's input is the concatenation of its fields without padding; fields of invalid headers
are left out (JSON_format.md, "calculations").
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from switch.codegen.bits import Part, emit_put, emit_store, emit_sum
from switch.codegen.expressions import Emitter
from switch.codegen.layout import LIMB, Layout, identifier, limbs
from switch.program import expressions as ex
from switch.program.model import Calculation, CalculationInput, Checksum, Program

# BMv2's names of algorithms -> functions of runtime/hash.h.
ALGORITHMS = {
    "crc16": "hash_crc16",
    "crc32": "hash_crc32",
    "csum16": "hash_csum16",
    "cksum16": "hash_csum16",
    "xor16": "hash_xor16",
    "identity": "hash_identity",
    "crc16_custom": "hash_crc_custom",
    "crc32_custom": "hash_crc_custom",
}
CRC_WIDTHS = {"crc16_custom": 16, "crc32_custom": 32}

_PUT_PAYLOAD = (
    "    if (packet->payload_length)",
    "        memcpy(bytes + length, packet->payload, packet->payload_length);",
    "    length += packet->payload_length;",
)


def custom_crcs(program: Program) -> dict[str, int]:
    """Returns the calculations with parameters -> bits, in the order that numbers them in C."""
    return {
        one.name: CRC_WIDTHS[one.algorithm]
        for one in program.calculations.values()
        if one.algorithm in CRC_WIDTHS
    }


def calculation_name(program: Program, name: str) -> str:
    position = list(program.calculations).index(name)
    return f"calculation{position}_{identifier(name)}"


class CalculationWriter:
    """Writes a C function for each calculation, and the verification and update of checksums."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.program = layout.program

    def function(self, calculation: Calculation) -> list[str]:
        """Returns a function of the packet that yields a uint64_t, with the input in a buffer on
        the stack."""
        out = Emitter(self.layout)
        if any(self._has_varbit(one) for one in calculation.inputs):
            return self._of_any_length(calculation)
        groups = self._groups(out, calculation)
        payload = any(one.payload for one in calculation.inputs)
        sums = ALGORITHMS[calculation.algorithm] == "hash_csum16" and not payload
        if sums and all(sum(width for _, width in parts) % 16 == 0 for _, parts in groups):
            return self._summed(out, calculation, groups)
        room = sum(sum(width for _, width in parts) for _, parts in groups) // 8 + 9
        out.emit(f"uint8_t bytes[{room}{' + SW_MAX_FRAME' if payload else ''}];")
        # Whole bytes in every group but the last, so that each group begins at a byte.
        aligned = all(sum(width for _, width in parts) % 8 == 0 for _, parts in groups)
        if aligned:
            out.emit("size_t length = 0;")
            for valid, parts in groups:
                out.emit(f"if ({valid}) {{", "uint8_t *to = bytes + length;")
                emit_store(out, "to", parts)
                out.emit(f"length += {sum(width for _, width in parts) // 8};", "}")
        else:
            out.emit("struct hash_bits to = {bytes, 0, sizeof bytes};")
            for valid, parts in groups:
                out.emit(f"if ({valid}) {{")
                emit_put(out, "to", parts)
                out.emit("}")
            out.emit("size_t length = (to.bits + 7) / 8;")
        return self._hashed(calculation, out.lines, payload)

    def _hashed(self, calculation: Calculation, lines: list[str], payload: bool) -> list[str]:
        """Returns the function that hashes `bytes`, which these lines write."""
        return [
            *self._head(calculation),
            *lines,
            *(_PUT_PAYLOAD if payload else ()),
            f"    return {self._hash(calculation)}bytes, length);",
            "}",
            "",
        ]

    def _has_varbit(self, one: CalculationInput) -> bool:
        if one.header is not None:
            return self.program.headers[one.header].type.varbit is not None
        return one.varbit is not None

    def _of_any_length(self, calculation: Calculation) -> list[str]:
        """Writes the input bit by bit, for inputs with varbit fields."""
        puts, room = Emitter(self.layout), 16
        payload = any(one.payload for one in calculation.inputs)
        for one in calculation.inputs:
            if one.payload:
                continue
            if one.varbit is not None:
                room += self._put_varbit(puts, one.varbit)
                continue
            name = one.header
            if name is None or self.program.headers[name].type.varbit is None:
                parts = self._groups(puts, replace(calculation, inputs=(one,)))
                for valid, members in parts:
                    puts.emit(f"if ({valid}) {{")
                    emit_put(puts, "to", members)
                    puts.emit("}")
                    room += sum(width for _, width in members) // 8 + 1
                continue
            header = self.program.headers[name]
            for member in header.type.fields:
                if member.varbit:
                    room += self._put_varbit(puts, ex.VarbitField(ex.HeaderRef(name), member.name))
                    continue
                puts.emit(f"if ({puts.valid(ex.HeaderRef(name))}) {{")
                emit_put(puts, "to", [(self.layout.field_path(header, member.name), member.width)])
                puts.emit("}")
                room += member.width // 8 + 1
        lines = [
            f"    uint8_t bytes[{room}{' + SW_MAX_FRAME' if payload else ''}];",
            "    struct hash_bits to = {bytes, 0, sizeof bytes};",
            *puts.lines,
            "    size_t length = (to.bits + 7) / 8;",
        ]
        return self._hashed(calculation, lines, payload)

    def _put_varbit(self, out: Emitter, value: ex.VarbitField) -> int:
        """Writes a varbit field; returns the most bytes it can have."""
        path = out.varbit(value)
        out.emit(f"if ({out.valid(value.header)})")
        out.emit(f"    hash_put_bytes(&to, {path}.data, {path}.bytes);")
        varbit = out.type_of(value.header).varbit
        assert varbit is not None
        return varbit.width // 8

    def _summed(
        self, out: Emitter, calculation: Calculation, groups: list[tuple[str, list[Part]]]
    ) -> list[str]:
        """Computes the Internet checksum directly from the fields."""
        out.emit("uint64_t total = 0;")
        for valid, parts in groups:
            out.emit(f"if ({valid}) {{")
            emit_sum(out, "total", parts)
            out.emit("}")
        out.emit("while (total >> 16) total = (total & 0xffff) + (total >> 16);")
        return [*self._head(calculation), *out.lines, "    return ~total & 0xffff;", "}", ""]

    def _hash(self, calculation: Calculation) -> str:
        """Returns the call of the algorithm, up to its last two arguments."""
        call = f"{ALGORITHMS[calculation.algorithm]}("
        if calculation.algorithm in CRC_WIDTHS:
            number = list(custom_crcs(self.program)).index(calculation.name)
            return f"{call}&sw->crcs[{number}], "
        return call

    def _head(self, calculation: Calculation) -> list[str]:
        return [
            f"static uint64_t {calculation_name(self.program, calculation.name)}(",
            "    const struct sw *sw, const struct sw_packet *packet,",
            "    const struct program_context *c) {",
            "    (void)sw, (void)packet, (void)c;",
        ]

    def _groups(self, out: Emitter, calculation: Calculation) -> list[tuple[str, list[Part]]]:
        """Returns the runs of inputs that are valid together: (C condition, parts)."""
        flat: list[tuple[str, Part]] = []
        for one in calculation.inputs:
            if one.header is not None:
                header = self.program.headers[one.header]
                valid = out.valid(ex.HeaderRef(one.header))
                for member in header.type.fields:
                    flat.append(
                        (valid, (self.layout.field_path(header, member.name), member.width))
                    )
            elif isinstance(one.value, ex.FieldValue):
                flat.append((out.valid(one.value.header), (out.field(one.value), one.width)))
            elif one.value is not None and one.width <= LIMB:
                flat.append(("1", (out.narrow(one.value), one.width)))
            elif one.value is not None:
                flat.append(("1", (out.array(one.value, limbs(one.width)), one.width)))
        return [
            (valid, [part for _, part in run]) for valid, run in groupby(flat, lambda it: it[0])
        ]

    def verify(self, checksum: Checksum) -> list[str]:
        out = Emitter(self.layout)
        header = self.program.headers[checksum.header]
        out.emit(f"if ({out.valid(ex.HeaderRef(checksum.header))}) {{")
        condition = "1" if checksum.condition is None else out.boolean(checksum.condition)
        name = calculation_name(self.program, checksum.calculation)
        path = self.layout.field_path(header, checksum.field)
        out.emit(
            f"if ({condition} && {name}(sw, packet, c) != {path}) c->state.checksum_error = 1;"
        )
        out.emit("}")
        return out.lines

    def update(self, checksum: Checksum) -> list[str]:
        out = Emitter(self.layout)
        width, signed = next(
            (one.width, one.signed)
            for one in self.program.headers[checksum.header].type.fields
            if one.name == checksum.field
        )
        out.emit("{")
        condition = "1" if checksum.condition is None else out.boolean(checksum.condition)
        name = calculation_name(self.program, checksum.calculation)
        out.emit(f"if ({condition}) {{", f"const limb args[1] = {{{name}(sw, packet, c)}};")
        out.offsets = [0]
        out.assign(
            ex.FieldValue(ex.HeaderRef(checksum.header), checksum.field, width, signed),
            ex.Parameter(0, LIMB),
        )
        out.emit("}", "}")
        return out.lines
