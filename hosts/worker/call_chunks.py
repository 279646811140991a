# SPDX-License-Identifier: Apache-2.0
"""The chunks of a call: what a submission needs to know of them beside their values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hosts.worker.scheduling.scheduler import Numbers
from switch.ports.paced_line import address

Short = npt.NDArray[np.uint16]


class CallChunks(NamedTuple):
    """n chunks, distinct, in the order of the call.

    arranged: (n,) the order in which they get numbers, as indices.
    lanes, servers, streams: (n,) of each: its valid lanes, its server by rank, and its stream.
    addresses: of these arrays, for C.
    """

    chunks: Numbers
    arranged: Numbers
    lanes: Short
    servers: Short
    streams: Numbers
    addresses: dict[str, int]

    @classmethod
    def of(
        cls, chunks: Numbers, arranged: Numbers, lanes: Numbers, servers: Numbers, streams: Numbers
    ) -> CallChunks:
        """Makes one of arrays of any integers; workers of one process whose calls have the same
        chunks get the same."""
        global _last
        last = _last
        made = cls(
            np.ascontiguousarray(chunks, np.int64),
            np.ascontiguousarray(arranged, np.int64),
            np.ascontiguousarray(lanes, np.uint16),
            np.ascontiguousarray(servers, np.uint16),
            np.ascontiguousarray(streams, np.int64),
            {},
        )
        names = cls._fields[:-1]
        if last is None or not all(
            np.array_equal(getattr(last, name), getattr(made, name)) for name in names
        ):
            made.addresses.update({name: address(getattr(made, name)) for name in names})
            last = _last = made
        return last


_last: CallChunks | None = None
