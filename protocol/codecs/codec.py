# SPDX-License-Identifier: Apache-2.0
"""The interface of codecs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from protocol.header import LANE, Words
from protocol.payloads import LEAST_EXPONENT, MOST_EXPONENT, NO_EXPONENT, Exps, Floats


class Codec(ABC):
    """Converts float32 chunks to integers and sums of these back.

    A chunk is encoded with an exponent e that all workers share (protocol.exponents): its values
    are multiplied by 2^`scale` and rounded. Each value takes one lane of a packet, so a packet
    holds as many values as the data plane has lanes. Switches and servers add lanes as two's
    complement integers, in any order and grouping, and know nothing else of a codec. A chunk with a
    value of 2^e or more, or one that is not finite, is flagged and summed in float32 instead.

    name: in plans.
    lane: of a value; the P4 program has the same.
    sum_digits: the sum of a whole world stays within +-2^sum_digits, and so does every partial one.
    finest_scale: of `scale`.
    least_exponent, most_exponent: exponents that a chunk may be encoded with.
    least_digits: a sum is coarse if the largest value in it has fewer binary digits.
    rounds_to_nearest: true if `encode` rounds ties to even and `decode` once, to the nearest
        float32: then workers' native code does both, with the numbers above (quantize.c,
        window.c). Others are called for one chunk after the other.
    """

    name: ClassVar[str]
    lane: ClassVar[np.dtype[Any]] = LANE
    sum_digits: ClassVar[int] = 30
    # Every float32 is a multiple of 2^-149: a finer step gains nothing and could not be returned.
    finest_scale: ClassVar[int] = 149
    least_exponent: ClassVar[int] = LEAST_EXPONENT
    most_exponent: ClassVar[int] = MOST_EXPONENT
    least_digits: ClassVar[int] = 8
    rounds_to_nearest: ClassVar[bool] = False

    def scale(self, exponents: Any, world: int) -> npt.NDArray[np.int32]:
        """Returns the binary digits after the point: sum_digits - ceil(log2 world) - e, at most
        finest_scale."""
        digits = self.sum_digits - (world - 1).bit_length() - np.asarray(exponents, np.int32)
        scales: npt.NDArray[np.int32] = np.minimum(digits, self.finest_scale)
        return scales

    def coarse(self, exponents: Exps, max_exponents: npt.NDArray[np.int8], world: int) -> int:
        """Counts coarse sums.

        exponents: (n,) used for scaling; max_exponents: (n,) reported. A value below 2^m is below
        2^(m + s) as an integer of scale s. Zeros are exact in any scale.
        """
        most = max_exponents.astype(np.int32)
        few = most + self.scale(exponents, world) < self.least_digits
        return int(np.count_nonzero(few & (most != NO_EXPONENT)))

    @abstractmethod
    def encode(
        self,
        values: Floats,
        exponents: Any,
        world: int,
        out: Words | None = None,
        scratch: Floats | None = None,
    ) -> tuple[Words, Exps, npt.NDArray[np.uint8]]:
        """Converts chunks (n, lanes) to integers, one exponent per row. Depends on its arguments
        only: a retransmission is encoded again to the same bits.

        Returns the payload words (n, lanes), written to `out` if that is given, each chunk's own
        exponent, and its flags: OVERFLOW where values do not fit the scale, NONFINITE where some
        are not finite. A flagged row is all zero. scratch: of the values' shape.
        """

    @abstractmethod
    def decode(self, words: Words, exponents: Any, world: int, out: Floats | None = None) -> Floats:
        """Converts sums (n, lanes) of chunks encoded with `exponents` (n,) to float32; in `out` if
        given."""
