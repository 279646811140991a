# SPDX-License-Identifier: Apache-2.0
"""Payloads of packets: own exponents of chunks, float32 words, and checksums.

All functions take and return numpy arrays, one row per chunk. The integers of a payload are made by
a codec (protocol.codecs).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.header import LANE, Array, Flag, Words

Floats = npt.NDArray[np.float32]
Exps = npt.NDArray[np.int16]

NO_EXPONENT = -128
"""Exponent of a chunk that is all zero (or has no finite value but zero)."""
LEAST_EXPONENT = -126
MOST_EXPONENT = 127
_HASH_START = np.uint32(0x9E3779B9)
_HASH_STEP = np.uint32(0x85EBCA6B)
_HASH_LAST = np.uint32(0xC2B2AE35)


def chunk_exponents(
    values: Floats, scratch: Floats | None = None
) -> tuple[Exps, npt.NDArray[np.uint8]]:
    """Computes each chunk's own exponent and flags: the least e with |x| < 2^e for all its finite
    x.

    values: (n, lanes) float32; scratch: of that shape. Returns (n,) exponents in -126..127, or
    NO_EXPONENT for all zero, and (n,) flags: NONFINITE if there is a NaN or inf, OVERFLOW if the
    exponent would be 128.
    """
    n = len(values)
    flags = np.zeros(n, np.uint8)
    if values.shape[1] == 0:
        return np.full(n, NO_EXPONENT, np.int16), flags
    # The bits of non-negative numbers compare like the numbers; NaN is above all.
    largest = np.abs(values, out=scratch).view(np.uint32).max(axis=1).view(np.float32)
    bad = ~np.isfinite(largest)
    if bad.any():
        rows = np.flatnonzero(bad)
        flags[rows] |= np.uint8(Flag.NONFINITE)
        finite = np.where(np.isfinite(values[rows]), values[rows], np.float32(0))
        largest[rows] = np.abs(finite).max(axis=1)
    above = np.frexp(largest)[1] > MOST_EXPONENT
    if above.any():
        flags[above] |= np.uint8(Flag.OVERFLOW)
    return exponents_of(largest), flags


def exponents_of(largest: Floats) -> Exps:
    """Returns chunks' own exponents (n,) from the largest |x| in each, at most MOST_EXPONENT."""
    exponents = np.frexp(largest)[1].astype(np.int16)
    np.clip(exponents, LEAST_EXPONENT, MOST_EXPONENT, out=exponents)
    exponents[largest == 0] = NO_EXPONENT
    return exponents


def float_words(values: Floats) -> Words:
    """Converts float32 chunks to DIRECT payload words: their bits in network order."""
    words: Words = values.astype(">f4").view(LANE)
    return words


def floats_of(words: Words) -> Floats:
    """Converts DIRECT payload words to float32."""
    return np.ascontiguousarray(words, LANE).view(">f4").astype(np.float32)


def word_sums(words: Words) -> npt.NDArray[np.uint32]:
    """Returns the sum (n,) of each row's 32-bit words mod 2^32: the payload's part of a
    checksum."""
    return np.asarray(words.sum(axis=1, dtype=np.int32).view(np.uint32))


def chunk_hash(job: Any, stream: Any, seq: Any, chunk: Any, exponent: Any) -> Array:
    """Returns the hash that ties a checksum to its chunk; takes arrays or numbers, returns uint32.

    With words w0 = job << 16 | stream << 8 | (exponent & 0xff), w1 = seq, w2 = chunk and all
    arithmetic mod 2^32 (the mixing steps of MurmurHash3, 32 bit):

        h = 0x9E3779B9
        for w in w0, w1, w2:  h = (h ^ w) * 0x85EBCA6B;  h = h ^ (h >> 15)
        h = h * 0xC2B2AE35;  h = h ^ (h >> 13)

    A contribution's checksum is the sum of its words plus this hash; nodes add checksums like
    lanes, so a sum of `workers` contributions has sum(words) + workers * hash. For DIRECT packets,
    sums included, the hash counts once.
    """
    first = _u32(job) << np.uint32(16) | _u32(stream) << np.uint32(8)
    first = first | (_u32(exponent) & np.uint32(0xFF))
    # In place on at least one dimension: faster, and arrays wrap without a warning.
    state = np.atleast_1d(first ^ _HASH_START)
    seqs, chunks = _u32(seq), _u32(chunk)
    if state.shape != np.broadcast_shapes(state.shape, seqs.shape, chunks.shape):
        state = np.array(np.broadcast_to(state, np.broadcast_shapes(seqs.shape, chunks.shape)))
    for word in (None, seqs, chunks):
        if word is not None:
            state ^= word
        state *= _HASH_STEP
        state ^= state >> np.uint32(15)
    state *= _HASH_LAST
    state ^= state >> np.uint32(13)
    scalar = not (first.ndim or seqs.ndim or chunks.ndim)
    hashes: Array = state[0] if scalar else state
    return hashes


def sum_checks(headers: Array, words: Words, full: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Returns a mask (n,) of packets whose checksum matches payload, hash and number of workers.

    A sum flagged OVERFLOW or NONFINITE has no payload and always passes, unless it is DIRECT.
    """
    if full.all():
        return sums_hold(headers, word_sums(words), full)
    sums = np.zeros(len(full), np.uint32)
    rows = np.flatnonzero(full)
    if len(rows):
        sums[rows] = word_sums(words[rows])
    return sums_hold(headers, sums, full)


def sums_hold(
    headers: Array, sums: npt.NDArray[np.uint32], full: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Does `sum_checks` for given `word_sums` (n,), which are ignored where there is no payload."""
    hashes = header_hashes(headers)
    direct = (headers["flags"] & Flag.DIRECT) != 0
    times = np.where(direct, np.uint32(1), headers["workers"].astype(np.uint32))
    holds = times * hashes + np.where(full, sums, 0) == headers["checksum"]
    payload_lost = ~full & ((headers["flags"] & (Flag.OVERFLOW | Flag.NONFINITE)) != 0)
    result: npt.NDArray[np.bool_] = holds | payload_lost
    return result


def header_hashes(headers: Array) -> npt.NDArray[np.uint32]:
    """Returns the `chunk_hash` (n,) of each header."""
    return chunk_hash(
        headers["job"],
        headers["stream"],
        headers["seq"],
        headers["chunk"],
        headers["exponent"],
    )


def rank_order_sum(values: Floats) -> Floats:
    """Returns the float32 sum over axis 0 (ranks), strictly in order, as servers add DIRECT
    chunks."""
    total: Floats = values[0].copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for contribution in values[1:]:
            total += contribution
    return total


def _u32(value: Any) -> npt.NDArray[np.uint32]:
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.ndim == 0:
        array = array.astype(np.int64)
    return array.astype(np.uint32)
