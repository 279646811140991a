# SPDX-License-Identifier: Apache-2.0
"""Quantising chunks natively, one pass over each where `protocol.fixed_point` takes several.

That module says what everything here comes to, to the bit, and does it where there is no compiler,
and for chunks that are not plain: not finite, too large, or of an extreme scale.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.native import library
from hosts.slots import Rows, taken
from protocol.fixed_point import (
    FLOAT32_SCALE,
    Exps,
    Floats,
    chunk_exponents,
    dequantise,
    exponents_of,
    quantise,
    scale,
    word_sums,
)
from protocol.header import Words

Flags = npt.NDArray[np.uint8]
Sums = npt.NDArray[np.uint32]

_TOO_LARGE = 0x7F000000  # the bits of 2^127, which has no exponent


def exponents_at(values: Floats, rows: Rows) -> tuple[Exps, Flags]:
    """`chunk_exponents` of these rows."""
    lib, largest = library(), None
    if lib is not None and values.shape[1] and values.flags.c_contiguous:
        largest = _largest(lib, values, rows)
    if largest is None:
        return chunk_exponents(taken(values, rows))
    return exponents_of(largest), np.zeros(len(rows), np.uint8)


def quantise_at(
    values: Floats, rows: Rows, exponents: Exps, world: int, out: Words
) -> tuple[Exps, Flags, Sums]:
    """`quantise` of these rows, to `out`, whose rows may lie apart; and `word_sums` of that."""
    lib, n, width = library(), len(rows), values.shape[1]
    if lib is not None and n and width and values.flags.c_contiguous and out.strides[1] == 4:
        largest = _largest(lib, values, rows)
        digits = scale(exponents, world)
        if largest is not None and int(np.abs(digits).max()) <= FLOAT32_SCALE:
            own = exponents_of(largest)
            if not (own > exponents).any():
                factors = np.ldexp(np.float32(1), digits)
                sums = np.empty(n, np.uint32)
                lib.quantise_rows(
                    *(values.ctypes.data, _where(rows).ctypes.data, n, width),
                    *(factors.ctypes.data, _address(out), out.strides[0], sums.ctypes.data),
                )
                return own, np.zeros(n, np.uint8), sums
    words, own, flags = quantise(taken(values, rows), exponents, world)
    out[:] = words
    return own, flags, word_sums(words)


def dequantise_to(words: Words, exponents: Exps, world: int, out: Floats) -> None:
    """`dequantise` to `out`, contiguous."""
    lib, (n, width) = library(), words.shape
    digits = scale(exponents, world)
    plain = n and width and words.strides[1] == 4
    if lib is None or not plain or int(np.abs(digits).max()) > FLOAT32_SCALE:
        dequantise(words, exponents, world, out)
        return
    factors = np.ldexp(np.float32(1), -digits)
    lib.dequantise_rows(
        *(_address(words), words.strides[0], n, width, factors.ctypes.data, out.ctypes.data)
    )


def sums_of(words: Words) -> Sums:
    """`word_sums` of rows that may lie apart."""
    lib, (n, width) = library(), words.shape
    if lib is None or not (n and width) or words.strides[1] != 4 or words.dtype != ">i4":
        return word_sums(words)
    sums = np.empty(n, np.uint32)
    lib.sum_rows(_address(words), words.strides[0], n, width, sums.ctypes.data)
    return sums


def _largest(lib: ctypes.CDLL, values: Floats, rows: Rows) -> Floats | None:
    """Each chunk's largest |x|; None if some are too large or not finite."""
    most = np.empty(len(rows), np.uint32)
    where = _where(rows)
    lib.largest_values(
        values.ctypes.data, where.ctypes.data, len(rows), values.shape[1], most.ctypes.data
    )
    if len(most) and int(most.max()) >= _TOO_LARGE:
        return None
    largest: Floats = most.view(np.float32)
    return largest


def _where(rows: Rows) -> npt.NDArray[np.int64]:
    return np.ascontiguousarray(rows, np.int64)


def _address(words: Any) -> int:
    """Of rows that may lie apart, of which there are some."""
    return int(words.__array_interface__["data"][0])
