# SPDX-License-Identifier: Apache-2.0
"""Native processing of plain contributions at a stream's root, and of their results.

It works on the node's own arrays, so native and numpy processing may alternate.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.native.loader import check_constants
from hosts.server.merge_buffers import Indices, Merging
from protocol.header import LANE, Array, Batch, Wire, opaque

# By the dimensions of the merge buffer: none, by slot, by sender and slot.
_PUTTING = {1: 0, 2: 1, 3: 2}

Column = npt.NDArray[Any]


class _Root(ctypes.Structure):
    """`struct root` of hosts/native/root.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("used", "final", "flags", "large")),
        *((name, ctypes.c_void_p) for name in ("seq", "chunk", "in", "checksum")),
        *((name, ctypes.c_void_p) for name in ("lanes", "exponent", "max_exponent")),
        *((name, ctypes.c_void_p) for name in ("rows", "results", "mine", "peers")),
        ("below", ctypes.c_void_p),
        *((name, ctypes.c_uint32) for name in ("mask", "chunks", "children", "width")),
        ("latest_copy", ctypes.c_uint32),
        ("bound", ctypes.c_int32),
        *((name, ctypes.c_uint16) for name in ("node", "job", "epoch", "world")),
        ("stream", ctypes.c_uint8),
        ("putting", ctypes.c_uint8),
    )


@dataclass(frozen=True, slots=True)
class Taken:
    """The prefix of a batch that was taken.

    count: packets.
    claimed: of these the first of their chunk.
    complete: (n,) slots, ascending, that became complete.
    """

    count: int
    claimed: int
    complete: Indices


class ContributionKernel:
    """The C view of a node's state.

    columns: contiguous arrays by their name in `struct root`, never replaced: (slots,) state of
        each slot; by sender `peers` (PEER) and `below`; `mine` (chunks,) those that the server
        sums; `results` (slots, lanes).
    numbers: the scalar fields.
    """

    def __init__(
        self, lib: ctypes.CDLL, columns: Mapping[str, Column], merging: Merging, **numbers: int
    ) -> None:
        check_constants(lib, {"root_bytes": ctypes.sizeof(_Root)})
        self._lib = lib
        self._lanes = columns["results"].shape[1]
        self._columns = {**columns, "rows": merging.rows}
        self._root = _Root(
            **{name: column.ctypes.data for name, column in self._columns.items()},
            mask=len(columns["used"]) - 1,
            chunks=len(columns["mine"]),
            children=len(columns["peers"]),
            width=self._lanes,
            bound=merging.bound,
            putting=_PUTTING[merging.rows.ndim],
            **numbers,
        )
        self._at = ctypes.addressof(self._root)
        # In one call a slot is completed once at most.
        self._done = np.empty(len(columns["used"]), np.uint32)
        self._counts = (ctypes.c_uint64 * 2)()  # slots completed, packets that claimed one
        counts = ctypes.addressof(self._counts)
        self._outputs = self._done.ctypes.data, counts, counts + ctypes.sizeof(ctypes.c_uint64)

    def take(self, batch: Batch) -> Taken:
        """Takes a batch's CONTRIBUTEs up to the first that is not plain (hosts/native/root.c)."""
        n, lanes = batch.payloads.shape
        if lanes != self._lanes:
            return Taken(0, 0, np.zeros(0, np.intp))
        headers, sources = _together(batch.headers), _together(batch.peers)
        payloads, full = batch.payloads, np.ascontiguousarray(batch.full)
        if payloads.dtype != LANE or payloads.strides[1] != payloads.itemsize:
            payloads = np.ascontiguousarray(payloads, LANE)
        count = self._lib.take_contributions(
            self._at, headers.ctypes.data, payloads.ctypes.data, payloads.strides[0],
            full.ctypes.data, sources.ctypes.data, n, *self._outputs,
        )  # fmt: skip
        complete = np.sort(self._done[: self._counts[0]]).astype(np.intp)
        return Taken(count, self._counts[1], complete)

    def seal(self, slots: Indices) -> bool:
        """Turns the sums of complete slots into results.

        Returns false, with nothing done, if copies still have to be added and a lane might
        overflow.
        """
        slots = np.ascontiguousarray(slots, np.int64)
        return bool(self._lib.seal_sums(self._at, slots.ctypes.data, len(slots)))

    def write(self, slots: Indices, wire: Wire) -> npt.NDArray[np.bool_]:
        """Writes the results of slots, except for the child's fields; returns a mask (n,) of those
        with payload.

        wire: (n, HEADER_BYTES + 4 lanes), contiguous.
        """
        slots = np.ascontiguousarray(slots, np.int64)
        whole = np.empty(len(slots), np.bool_)
        self._lib.write_results(
            self._at, slots.ctypes.data, len(slots), wire.ctypes.data, whole.ctypes.data
        )
        return whole


def _together(items: Array) -> Array:
    return items if items.flags.c_contiguous else np.ascontiguousarray(opaque(items))
