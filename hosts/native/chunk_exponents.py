# SPDX-License-Identifier: Apache-2.0
"""Exponents of chunks, in one native pass over their values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hosts.native.loader import load_native
from protocol.payloads import Exps, Floats, chunk_exponents, exponents_of
from switch.ports.paced_line import address

Flags = npt.NDArray[np.uint8]

_TOO_LARGE = 0x7F000000  # the bits of 2^127, which has no exponent


def exponents_in(values: Floats) -> tuple[Exps, Flags]:
    """Does `chunk_exponents` for contiguous chunks."""
    n, width = values.shape
    if not (n and width):
        return chunk_exponents(values)
    most = np.empty(n, np.uint32)
    load_native().largest_values(address(values), n, width, address(most))
    if int(most.max()) >= _TOO_LARGE:
        return chunk_exponents(values)
    largest: Floats = most.view(np.float32)
    return exponents_of(largest), np.zeros(n, np.uint8)
