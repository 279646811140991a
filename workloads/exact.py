# SPDX-License-Identifier: Apache-2.0
"""Checks the reference's sums against exact ones, computed from the summands alone.

The reference quantises with the workers' own code, so the two agree to the last bit even if that
code is wrong. This module compares the sums with float64 sums of the gradients themselves, within
the bound of docs/reference/protocol.md ("Numbers"), and shares no code with the quantisation: it
derives exponents from the gradients, since a scale that is too coarse would widen its own bound.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]

_BITS = 30  # bits of a lane for the magnitude of a sum
_HEADROOM = 2
_FINEST = 149
_LEAST, _MOST = -126, 127
_UNIT = 2.0**-24  # relative rounding error of float32
# Covers the rounding of the float64 sums, less than 2^-22 of the bounds.
_MARGIN = 1 + 2.0**-20


class InexactSumError(Exception):
    """The error of a sum exceeds its bound; the text names the sum and the error."""


class ExactSums:
    """Checks consecutive rounds of the same chunks.

    worst: the largest error so far, as a share of its bound.
    """

    def __init__(self, chunks: int) -> None:
        self.worst = 0.0
        self._rounds = np.zeros(chunks, np.int64)
        self._exponents = np.zeros(chunks, np.int64)  # exponents of the next round

    @property
    def rounds(self) -> int:
        """Number of rounds checked."""
        return int(self._rounds.max(initial=0))

    def check(self, values: Floats, sums: Floats, chunks: Indices | None = None) -> None:
        """Checks one round.

        values: (world, n, lanes) by rank.
        sums: (n, lanes) their sums.
        chunks: (n,) the chunks; None for all.

        Raises InexactSumError.
        """
        mine = np.arange(len(self._exponents)) if chunks is None else chunks
        largest = _largest(values)
        exponents = self._coming(mine, largest)
        # False for NaN, too. Most rounds are of integers alone.
        if (largest < np.ldexp(1.0, exponents)).all() and np.isfinite(sums).all():
            exact = values.sum(axis=0, dtype=np.float64)
            allowed = self._integers(len(values), exponents, sums)
            error = np.abs(sums - exact)
            wrong = error > allowed * _MARGIN
        else:
            largest = _largest(_finite(values))
            exponents = self._coming(mine, largest)
            exact, allowed, error, wrong = self._compare(values, sums, largest, exponents)
        if wrong.any():
            self._complain(mine, wrong, exact, sums, allowed)
        shares = np.divide(error, allowed, out=np.zeros_like(error), where=allowed > 0)
        self.worst = max(self.worst, float(shares.max(initial=0)))
        self._end(mine, largest, exponents)

    def _compare(
        self, values: Floats, sums: Floats, largest: Doubles, exponents: Indices
    ) -> tuple[Doubles, Doubles, Doubles, Mask]:
        """Compares sums of a round, some of which may be DIRECT or not finite: returns the exact
        sums, the allowed and the actual errors, and where a sum is wrong."""
        wide = values.astype(np.float64)
        finite = np.isfinite(wide)
        magnitudes = np.where(finite, np.abs(wide), 0)
        direct = ~finite.all(axis=(0, 2)) | (largest >= np.ldexp(1.0, exponents))
        with np.errstate(invalid="ignore"):
            exact = wide.sum(axis=0)
        allowed = np.where(
            direct[:, None], self._float32(magnitudes), self._integers(len(values), exponents, sums)
        )
        usable = finite.all(axis=0) & np.isfinite(sums)
        error = np.where(usable, np.abs(sums - np.where(usable, exact, 0)), 0)
        wrong = error > allowed * _MARGIN
        # Where float32 ends an infinity is right, of the sum's sign. On the way to a DIRECT sum
        # partial sums may be larger than the sum and of another sign.
        ends = float(np.finfo(np.float32).max) * (1 - _UNIT)
        passes = direct[:, None] & (magnitudes.sum(axis=0) >= ends)
        beyond = (np.abs(exact) + allowed >= ends) & np.isinf(sums) & (sums * exact > 0)
        # With a summand that is not finite, the sum is that of IEEE 754.
        odd = ~finite.all(axis=0)
        right = (sums == exact) | (np.isnan(sums) & (np.isnan(exact) | passes))
        wrong |= odd & ~right
        wrong |= ~odd & ~np.isfinite(sums) & ~(passes | beyond)
        return exact, allowed, error, wrong

    def start(self, values: Floats) -> None:
        """Records a round of initial parameters (world, chunks, lanes), which are not summed."""
        every = np.arange(len(self._exponents))
        largest = _largest(_finite(values))
        self._end(every, largest, self._coming(every, largest))

    def resume(self, known: Mask, exponents: Indices) -> None:
        """Sets the (n,) exponents of chunks that resume from a checkpoint."""
        self._exponents[known] = exponents[known]
        self._rounds[known] = np.maximum(1, self._rounds[known])

    def _coming(self, chunks: Indices, largest: Doubles) -> Indices:
        """Returns the exponents of a round; an exponent round determines those of the first."""
        found = np.where(largest > 0, np.clip(_needed(largest), _LEAST, _MOST), 0)
        return np.where(self._rounds[chunks] == 0, found, self._exponents[chunks])

    def _end(self, chunks: Indices, largest: Doubles, exponents: Indices) -> None:
        """Updates the exponents for the next round."""
        told = np.clip(_needed(largest), _LEAST, _MOST)
        following = np.clip(told + _HEADROOM, _LEAST, _MOST)
        self._exponents[chunks] = np.where(largest > 0, following, exponents)
        self._rounds[chunks] += 1

    def _integers(self, world: int, exponents: Indices, sums: Floats) -> Doubles:
        """Bounds integer sums: half a step of the scale for each worker, and float32 rounding."""
        digits = _BITS - (world - 1).bit_length()
        scale = np.minimum(digits - exponents, _FINEST)
        steps = world * np.ldexp(0.5, -scale)
        rounding = _UNIT * np.abs(np.where(np.isfinite(sums), sums, 0).astype(np.float64))
        return np.asarray(steps[:, None] + rounding, np.float64)

    def _float32(self, magnitudes: Doubles) -> Doubles:
        """Bounds recursive float32 sums (Higham, Accuracy and Stability, section 4.2)."""
        additions = (len(magnitudes) - 1) * _UNIT
        return np.asarray(additions / (1 - additions) * magnitudes.sum(axis=0), np.float64)

    def _complain(
        self, chunks: Indices, wrong: Mask, exact: Doubles, sums: Floats, allowed: Doubles
    ) -> None:
        row, lane = (int(i) for i in np.argwhere(wrong)[0])
        chunk = int(chunks[row])
        raise InexactSumError(
            f"round {self._rounds[chunk]}, chunk {chunk}, lane {lane}: the sum is"
            f" {sums[row, lane]!s}, exactly it is {exact[row, lane]!s}, and no more than"
            f" {allowed[row, lane]:.3g}"
            f" apart is allowed ({int(wrong.sum())} lanes of this round are wrong): there is an"
            " error in quantisation, so that agreement between workers and reference says nothing"
        )


def _finite(values: Floats) -> Floats:
    """Returns the values, with 0 for those that are not finite."""
    return np.where(np.isfinite(values), values, np.float32(0))


def _largest(values: Floats) -> Doubles:
    """Returns the largest |x| in each of n chunks (world, n, lanes); NaN if there is one."""
    largest: Doubles = np.abs(values).max(axis=0).max(axis=1).astype(np.float64)
    return largest


def _needed(largest: Doubles) -> npt.NDArray[np.int64]:
    """Computes the least e with |x| < 2^e."""
    return np.frexp(largest)[1].astype(np.int64)
