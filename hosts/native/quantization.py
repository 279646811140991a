# SPDX-License-Identifier: Apache-2.0
"""Native quantisation of chunks, in one pass where a codec takes several.

The codec is the reference, to the bit, and is used where it does not round to nearest, where there
is no compiler, and for chunks that are not finite, too large, or of an extreme scale.
"""

from __future__ import annotations

import ctypes
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from hosts.data.submissions import ChunkRefs, Rows
from hosts.native.loader import load_native
from protocol.codecs.codec import Codec
from protocol.codecs.fixed32 import FLOAT32_SCALE
from protocol.header import LANE, LANE_BYTES, Words
from protocol.payloads import Exps, Floats, chunk_exponents, exponents_of, word_sums

Flags = npt.NDArray[np.uint8]
Sums = npt.NDArray[np.uint32]

_TOO_LARGE = 0x7F000000  # the bits of 2^127, which has no exponent


def exponents_in(values: Floats) -> tuple[Exps, Flags]:
    """Does `chunk_exponents` for contiguous chunks."""
    lib, (n, width) = load_native(), values.shape
    if lib is None or not (n and width):
        return chunk_exponents(values)
    most = np.empty(n, np.uint32)
    lib.largest_values(values.ctypes.data, n, width, most.ctypes.data)
    if int(most.max()) >= _TOO_LARGE:
        return chunk_exponents(values)
    largest: Floats = most.view(np.float32)
    return exponents_of(largest), np.zeros(n, np.uint8)


def quantise_to(
    codec: Codec, places: ChunkRefs, exponents: Exps, flags: Flags, world: int, out: Words
) -> Sums:
    """Does `Codec.encode` into `out`, whose rows may be strided; returns its `word_sums`.

    flags: as `chunk_exponents` returns them, zero where a chunk fits.
    """
    lib, (n, width) = load_native(), out.shape
    if not (n and width):
        return np.zeros(n, np.uint32)
    digits = codec.scale(exponents, world)
    plain = out.strides[1] == LANE_BYTES and not flags.any()
    if not _suits(lib, codec, plain, digits):
        words = codec.encode(places.values(width), exponents, world)[0]
        out[:] = words
        return word_sums(words)
    factors, sums = np.ldexp(np.float32(1), digits), np.empty(n, np.uint32)
    values_at = places.values_at()
    lib.quantise_rows(
        *(values_at.ctypes.data, n, width, factors.ctypes.data),
        *(_address(out), out.strides[0], sums.ctypes.data),
    )
    return sums


def keep_and_dequantise(
    codec: Codec,
    words: Words,
    exponents: Exps,
    world: int,
    places: ChunkRefs,
    kept: Words,
    rows: Rows,
) -> None:
    """Does `Codec.decode` into the destinations of these sums; copies the words to rows of `kept`,
    contiguous."""
    lib, (n, width) = load_native(), words.shape
    if not (n and width):
        return
    digits = codec.scale(exponents, world)
    plain = words.strides[1] == LANE_BYTES and words.dtype == kept.dtype
    if not _suits(lib, codec, plain, digits):
        kept[rows] = words
        places.put(codec.decode(words, exponents, world))
        return
    factors, sums_at = np.ldexp(np.float32(1), -digits), places.sums_at()
    rows = np.ascontiguousarray(rows, np.int64)
    lib.dequantise_rows(
        *(_address(words), words.strides[0], n, width, factors.ctypes.data, sums_at.ctypes.data),
        *(kept.ctypes.data, rows.ctypes.data),
    )


def sums_of(words: Words) -> Sums:
    """Does `word_sums` for rows that may be strided."""
    lib, (n, width) = load_native(), words.shape
    if lib is None or not (n and width) or words.strides[1] != LANE_BYTES or words.dtype != LANE:
        return word_sums(words)
    sums = np.empty(n, np.uint32)
    lib.sum_rows(_address(words), words.strides[0], n, width, sums.ctypes.data)
    return sums


def _suits(
    lib: Any, codec: Codec, plain: bool, digits: npt.NDArray[np.int32]
) -> TypeGuard[ctypes.CDLL]:
    """Returns true if the native passes give what the codec gives."""
    near = int(np.abs(digits).max()) <= FLOAT32_SCALE
    return lib is not None and codec.rounds_to_nearest and plain and near


def _address(words: Any) -> int:
    """Returns the address of rows that may be strided, of which there must be some."""
    return int(words.__array_interface__["data"][0])
