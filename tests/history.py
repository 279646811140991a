# SPDX-License-Identifier: Apache-2.0
"""Reference sums when workers fail: computed in one process from the set of contributors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from protocol.exponents import Exponents
from protocol.payloads import NO_EXPONENT, chunk_exponents
from protocol.reference import reference_sums


class Contacts(Exponents):
    """An exponent policy that exposes the results of its exponent rounds."""

    @property
    def found(self) -> dict[int, int]:
        """The exponent that the exponent round of each chunk found, as far as it is complete."""
        columns = self.columns()
        contacted = np.flatnonzero(columns["contacted"])
        return dict(zip(contacted.tolist(), columns["first"][contacted].tolist(), strict=True))


def first_exponent(found: int) -> int:
    """The exponent of a chunk's first round, given what its exponent round found."""
    return 0 if found == NO_EXPONENT else found


def history(
    values: npt.NDArray[np.float32],
    workers: npt.NDArray[np.int64],
    found: Mapping[int, int],
    worlds: Mapping[int, Sequence[int]],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Returns sums (rounds, chunks, lanes) and flags (rounds, chunks) of integer sums.

    Args:
        values: (rounds, world, chunks, lanes) by first rank.
        workers: (rounds, chunks) the index of the set of members in each sum.
        found: The result of each chunk's exponent round.
        worlds: The sets of members.

    Fails if no set had such an exponent round.
    """
    rounds, _, chunks, _ = values.shape
    for chunk, exponent in found.items():
        own = chunk_exponents(values[0, :, chunk])[0]
        possible = {
            first_exponent(int(own[list(members)].max()))
            for members in worlds.values()
            if set(members) >= set(worlds[int(workers[0, chunk])])
        }
        assert exponent in possible, f"chunk {chunk}: an exponent round that no worker held"
    policy = Exponents(chunks, 1)
    every = np.arange(chunks)
    policy.contact(every, [found[chunk] for chunk in range(chunks)])
    sums = np.empty((rounds, *values.shape[2:]), np.float32)
    flags = np.empty((rounds, chunks), np.uint8)
    for number in range(rounds):
        began, _ = policy.begin(every)
        for count in np.unique(workers[number]).tolist():
            mine = np.flatnonzero(workers[number] == count)
            of_them = values[number][list(worlds[count])][:, mine]
            result = reference_sums(of_them, policy.exponents(mine, began[mine]))
            policy.complete(mine, began[mine], result.max_exponents)
            sums[number, mine], flags[number, mine] = result.sums, result.flags
    return sums, flags
