# SPDX-License-Identifier: Apache-2.0
"""Fixed point in lanes of 32 bits, rounded to nearest.

A chunk encoded with exponent e holds values |x| < 2^e as round(x 2^s) with s = `scale(e, world)`,
so that the sum over the whole world stays within +-2^30 and no partial sum can overflow. An exact
sum of n = world values is met within

    |float32 result - exact| <= world 2^-(1+s) + 2^-24 |result|

(half a step of rounding per worker, one rounding to float32), as long as the result is a finite
float32. Workers encode in C (hosts/native/quantize.c), for which this is the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.codecs.codec import Codec
from protocol.header import Flag, Words
from protocol.payloads import Exps, Floats, chunk_exponents

# Scales whose power of two and whose results are normal float32 numbers either way.
FLOAT32_SCALE = 126


class Fixed32(Codec):
    """The codec of this module."""

    name = "fixed32"
    rounds_to_nearest = True

    def encode(
        self,
        values: Floats,
        exponents: Any,
        world: int,
        out: Words | None = None,
        scratch: Floats | None = None,
    ) -> tuple[Words, Exps, npt.NDArray[np.uint8]]:
        given = np.asarray(exponents, np.int16)
        own, flags = chunk_exponents(values, scratch)
        flags[own > given] |= np.uint8(Flag.OVERFLOW)
        flagged = flags != 0
        if flagged.any():
            values = values.copy()
            values[flagged] = 0
        digits = self.scale(given, world)
        scaled: npt.NDArray[Any]
        # Multiplying by a power of two is exact, so float32 gives the bits that float64 would.
        if digits.size == 0 or int(np.abs(digits).max()) <= FLOAT32_SCALE:
            scaled = np.multiply(values, np.ldexp(np.float32(1), digits)[:, None], out=scratch)
        else:
            scaled = values.astype(np.float64) * np.ldexp(np.float64(1), digits)[:, None]
        words: Words = np.empty(values.shape, self.lane) if out is None else out
        np.rint(scaled, out=words, casting="unsafe")
        return words, own, flags

    def decode(self, words: Words, exponents: Any, world: int, out: Floats | None = None) -> Floats:
        floats = np.empty(words.shape, np.float32) if out is None else out
        digits = self.scale(exponents, world)
        if digits.size == 0 or int(np.abs(digits).max()) <= FLOAT32_SCALE:
            floats[:] = words  # rounds once, to nearest; the scaling is exact
            with np.errstate(over="ignore"):
                floats *= np.ldexp(np.float32(1), -digits)[:, None]
            return floats
        with np.errstate(over="ignore"):
            floats[:] = words * np.ldexp(np.float64(1), -digits)[:, None]
        return floats
