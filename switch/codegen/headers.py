# SPDX-License-Identifier: Apache-2.0
"""C that moves whole headers between a frame and their structs, with a varbit field or without.

A varbit field is a struct of its own: how many bytes it has, and room for as many as it may have.
"""

from __future__ import annotations

from switch.codegen.bits import Part, emit_load, emit_store
from switch.codegen.expressions import Emitter
from switch.codegen.layout import Layout
from switch.program import HeaderType


def size_of(layout: Layout, header_type: HeaderType, path: str) -> str:
    """C expression: bytes of a header on the wire."""
    fixed = str(header_type.bits // 8)
    varbit = header_type.varbit
    if varbit is None:
        return fixed
    return f"({fixed} + {path}.{layout.member(header_type, varbit.name)}.bytes)"


def emit_extract(
    out: Emitter, layout: Layout, header_type: HeaderType, path: str, count: str
) -> None:
    """Fills a header from the bytes at C pointer `from`; count: bytes of its varbit field."""
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
    """Writes a header to C pointer `out` and moves that behind it."""
    before, after = _parts(layout, header_type, path)
    size, shift = _bytes_and_bits(before)
    if shift:  # the byte in which the varbit field begins, too
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
    if shift:  # what the byte in which it ends has of it
        after.insert(0, (f"(out[0] >> {8 - shift})", shift))
    if after:
        emit_store(out, "out", after)
        out.emit(f"out += {_bytes_and_bits(after)[0]};")


def _parts(layout: Layout, header_type: HeaderType, path: str) -> tuple[list[Part], list[Part]]:
    """The fields before and behind the varbit field."""
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
    """Whole bytes of the parts, and bits that are left."""
    return divmod(sum(width for _, width in parts), 8)
