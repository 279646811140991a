# SPDX-License-Identifier: Apache-2.0
"""The rules that assign slices to servers, by name. A new one is a file here and a line below."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from protocol.assignment.balanced import balanced
from protocol.assignment.hashed import hashed
from protocol.assignment.keys import by_key

Indices = npt.NDArray[np.int64]

BALANCED = "balanced"

# Returns the server (n,) of each slice, from 0 on: (slices, servers), the first being (n, 3) key,
# first chunk and number of chunks, in order of chunks. All nodes of a job have to get the same.
ASSIGNMENTS: dict[str, Callable[[Indices, int], Indices]] = {
    BALANCED: balanced,
    "hashed": hashed,
    "keys": by_key,
}
