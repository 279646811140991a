# SPDX-License-Identifier: Apache-2.0
"""Generates C that converts fields between bytes in network order and integers, with as few and as
wide memory accesses as their positions allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from switch.codegen.expressions import Emitter
from switch.codegen.layout import LIMB
from switch.codegen.limbs import literal

Part = tuple[str, int]  # C expression or lvalue (array of limbs if wider than 64), width in bits


@dataclass(frozen=True)
class _Piece:
    """Limbs low .. low+count of a part (or a whole narrow part), `width` bits each, at a bit
    position."""

    value: str
    offset: int
    width: int
    count: int


def _pieces(parts: Sequence[Part], offset: int = 0) -> Iterator[_Piece]:
    """Splits parts into runs of whole limbs at byte positions and pieces of at most 64 bits. The
    first part is at bit `offset`."""
    for value, width in parts:
        if width <= LIMB:
            yield _Piece(value, offset, width, 1)
        else:
            whole, rest = divmod(width, LIMB)
            if rest:
                yield _Piece(f"{value}[{whole}]", offset, rest, 1)
            if whole > 1 and (offset + rest) % 8 == 0:
                yield _Piece(value, offset + rest, LIMB, whole)
            else:
                for i in reversed(range(whole)):
                    place = offset + rest + LIMB * (whole - 1 - i)
                    yield _Piece(f"{value}[{i}]", place, LIMB, 1)
        offset += width


def emit_load(out: Emitter, at: str, parts: Sequence[Part], offset: int = 0) -> None:
    """Emits the loads of lvalues from the bytes at C pointer `at`, from bit `offset` on. The last
    byte must exist as a whole, even if the lvalues take only part of it."""
    total = (offset + sum(width for _, width in parts) + 7) // 8
    for piece in _pieces(parts, offset):
        if piece.count > 1:
            name = f"load_limbs{out.layout.move}"
            out.emit(f"{name}({piece.value}, {piece.count}, {at} + {piece.offset // 8});")
        else:
            out.emit(f"{piece.value} = {load_bits(at, piece.offset, piece.width, total)};")


def load_bits(at: str, offset: int, width: int, total: int) -> str:
    """Returns a C expression for `width` <= 64 bits at a bit offset; bytes at .. at+total may be
    read."""
    first, last = offset // 8, (offset + width - 1) // 8
    span = last - first + 1
    mask = (1 << width) - 1
    if span == 9:
        shift = 8 * (last + 1) - (offset + width)
        value = f"(load64({at} + {first + 1}) >> {shift} | load8({at} + {first}) << {64 - shift})"
        return value if width == LIMB else f"({value} & {literal(mask)})"
    for size in (1, 2, 4, 8):
        if size >= span and size <= total:
            start = min(first, total - size)
            shift = 8 * (start + size) - (offset + width)
            value = f"load{8 * size}({at} + {start})"
            if shift:
                value = f"{value} >> {shift}"
            return f"({value})" if shift + width == 8 * size else f"({value} & {literal(mask)})"
    value = " | ".join(f"load8({at} + {first + i}) << {8 * (span - 1 - i)}" for i in range(span))
    shift = 8 * (last + 1) - (offset + width)
    return f"((({value}) >> {shift}) & {literal(mask)})"


def emit_store(out: Emitter, at: str, parts: Sequence[Part]) -> None:
    """Emits the stores of values to the bytes at C pointer `at`; together they are whole bytes."""
    run: list[_Piece] = []
    for piece in _pieces(parts):
        if piece.count > 1:
            _store_run(out, at, run)
            run = []
            name = f"store_limbs{out.layout.move}"
            out.emit(f"{name}({at} + {piece.offset // 8}, {piece.value}, {piece.count});")
        else:
            run.append(piece)
    _store_run(out, at, run)


def _store_run(out: Emitter, at: str, run: list[_Piece]) -> None:
    if not run:
        return
    start = run[0].offset
    end = run[-1].offset + run[-1].width
    place = start
    while place < end:
        size = next(one for one in (64, 32, 16, 8) if one <= end - place)
        terms = []
        for piece in run:
            value = f"(uint64_t){piece.value}"
            shift = place + size - (piece.offset + piece.width)
            if piece.offset >= place + size or piece.offset + piece.width <= place:
                continue
            if shift > 0:
                value = f"{value} << {shift}"
            elif shift < 0:
                value = f"{value} >> {-shift}"
            terms.append(value)
        out.emit(f"store{size}({at} + {place // 8}, {' | '.join(terms)});")
        place += size


def emit_sum(out: Emitter, total: str, parts: Sequence[Part]) -> None:
    """Emits the addition of whole 16-bit words to an Internet checksum. All words of a value have
    the same weight, as 2^16 is 1 modulo 2^16 - 1."""
    for piece in _pieces(parts):
        shift = -(piece.offset + piece.width * piece.count) % 16
        for i in range(piece.count):
            value = f"{piece.value}[{i}]" if piece.count > 1 else piece.value
            if piece.width + shift <= 48:
                out.emit(f"{total} += (uint64_t){value} << {shift};")
            else:
                name = out.keep(f"(uint64_t){value}")
                out.emit(f"{total} += ({name} & 0xffffffff) << {shift};")
                out.emit(f"{total} += ({name} >> 32) << {shift};")


def emit_put(out: Emitter, bits: str, parts: Sequence[Part]) -> None:
    """Emits the appending of values at any bit position to the `struct hash_bits` of this name."""
    for value, width in parts:
        if width > LIMB:
            out.emit(f"hash_put(&{bits}, {value}, {width});")
        else:
            name = out.keep(f"(uint64_t){value}")
            out.emit(f"hash_put(&{bits}, &{name}, {width});")
