# SPDX-License-Identifier: Apache-2.0
"""Calls of a codec in Python for one chunk in memory, from C (``hosts/native/worker.h``)."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from protocol.codecs.codec import Codec
from protocol.header import LANE, LANE_BYTES, Words
from protocol.payloads import Floats


class CodecCalls:
    """Encodes and decodes chunks of `width` values, for sums of `world` workers."""

    def __init__(self, codec: Codec, world: int, width: int) -> None:
        self._codec, self._world, self._width = codec, world, width

    def encode(self, values_at: int, exponent: int, words_at: int, total: Any) -> None:
        words = self._codec.encode(self._floats(values_at), [exponent], self._world)[0]
        ctypes.memmove(words_at, words.ctypes.data, words.nbytes)
        total[0] = int(words.sum(dtype=np.int64)) & 0xFFFFFFFF

    def decode(self, words_at: int, exponent: int, sums_at: int) -> None:
        buffer = (ctypes.c_uint8 * (LANE_BYTES * self._width)).from_address(words_at)
        words: Words = np.ctypeslib.as_array(buffer).view(LANE)[None]
        self._floats(sums_at)[:] = self._codec.decode(words, [exponent], self._world)

    def _floats(self, at: int) -> Floats:
        buffer = (ctypes.c_float * self._width).from_address(at)
        floats: Floats = np.ctypeslib.as_array(buffer)[None]
        return floats
