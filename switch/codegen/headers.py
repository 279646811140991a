# SPDX-License-Identifier: Apache-2.0
"""Generates C that moves whole headers between a frame and their structs, with or without a varbit
field.

A varbit field is a struct of its own: its present length in bytes, and room for the longest value.
"""

from __future__ import annotations

from switch.codegen.bits import Part, emit_load, emit_store
from switch.codegen.expressions import Emitter
from switch.codegen.layout import Layout
from switch.program.model import HeaderType


def size_of(layout: Layout, header_type: HeaderType, path: str) -> str:
    """Returns a C expression for the bytes of a header on the wire."""
    fixed = str(header_type.bits // 8)
    varbit = header_type.varbit
    if varbit is None:
        return fixed
    return f"({fixed} + {path}.{layout.member(header_type, varbit.name)}.bytes)"


def emit_extract(
    out: Emitter, layout: Layout, header_type: HeaderType, path: str, count: str
) -> None:
    """Emits the filling of a header from the bytes at C pointer `from`. count: bytes of its varbit
    field."""
    before, after = _parts(layout, header_type, path)
    if before:
        emit_load(out, "from", before)
    if header_type.varbit is None:
        return
    varbit = f"{path}.{layout.member(header_type, header_type.varbit.name)}"
    size, shift = _bytes_and_bits(before)
    if shift:
        out.emit(f"load_shifted({varbit}.data, from + {size}, {count}, {shift});")
    else:
        out.emit(f"memcpy({varbit}.data, from + {size}, {count});")
    out.emit(f"{varbit}.bytes = (uint32_t){count};")
    if after:
        out.emit(f"const uint8_t *rest = from + {size} + {count};")
        emit_load(out, "rest", after, shift)


def emit_header(out: Emitter, layout: Layout, header_type: HeaderType, path: str) -> None:
    """Emits the writing of a header to C pointer `out`, which then points behind it."""
    before, after = _parts(layout, header_type, path)
    size, shift = _bytes_and_bits(before)
    if shift:  # includes the byte in which the varbit field begins
        emit_store(out, "out", [*before, ("0", 8 - shift)])
    elif before:
        emit_store(out, "out", before)
    if before:
        out.emit(f"out += {size};")
    if header_type.varbit is None:
        return
    varbit = f"{path}.{layout.member(header_type, header_type.varbit.name)}"
    if shift:
        out.emit(f"store_shifted(out, {varbit}.data, {varbit}.bytes, {shift});")
    else:
        out.emit(f"memcpy(out, {varbit}.data, {varbit}.bytes);")
    out.emit(f"out += {varbit}.bytes;")
    if shift:  # the varbit field's part of the byte in which it ends
        after.insert(0, (f"(out[0] >> {8 - shift})", shift))
    if after:
        emit_store(out, "out", after)
        out.emit(f"out += {_bytes_and_bits(after)[0]};")


def _parts(layout: Layout, header_type: HeaderType, path: str) -> tuple[list[Part], list[Part]]:
    """Returns the fields before and behind the varbit field."""
    before: list[Part] = []
    after: list[Part] = []
    parts = before
    for one in header_type.fields:
        if one.varbit:
            parts = after
            continue
        parts.append((f"{path}.{layout.member(header_type, one.name)}", one.width))
    return before, after


def _bytes_and_bits(parts: list[Part]) -> tuple[int, int]:
    """Returns the whole bytes of the parts, and the bits left over."""
    return divmod(sum(width for _, width in parts), 8)
