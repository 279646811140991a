# SPDX-License-Identifier: Apache-2.0
"""The root of a stream, natively: plain contributions into slots, and results out of them.

It works on the very arrays of the node, so that either way goes on from what the other has left.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.server.merge_buffers import Indices, Merging
from protocol.header import Array, Batch, Wire, opaque

# By the dimensions of where copies are put together: nowhere, by slot, by sender and slot.
_PUTTING = {1: 0, 2: 1, 3: 2}
_BIG_ENDIAN = np.dtype(">i4")

Column = npt.NDArray[Any]


class _Root(ctypes.Structure):
    """`struct root` of runtime/root.c, which says what is what."""

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
    """The first `count` packets of a batch are in, `claimed` of them each the first of its chunk;
    complete: (n,) slots, in ascending order, in which all copies are now."""

    count: int
    claimed: int
    complete: Indices


class ContributionKernel:
    """What the native code knows of a node.

    columns: (slots,) what the node says of each slot, by its name in `struct root`; by sender
    `peers` (PEER) and `below`; `mine` (chunks,) which the server sums; `results` (slots,
    lanes). All contiguous, and never replaced while this lives. numbers: what else is in it.
    """

    def __init__(
        self, lib: ctypes.CDLL, columns: Mapping[str, Column], merging: Merging, **numbers: int
    ) -> None:
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
        self._told = (ctypes.c_uint64 * 2)()  # slots completed, packets that claimed one
        told = ctypes.addressof(self._told)
        self._told_at = self._done.ctypes.data, told, told + ctypes.sizeof(ctypes.c_uint64)

    def take(self, batch: Batch) -> Taken:
        """Takes a batch's CONTRIBUTEs up to the first that is not plain (runtime/root.c)."""
        n, lanes = batch.payloads.shape
        if lanes != self._lanes:
            return Taken(0, 0, np.zeros(0, np.intp))
        headers, sources = _together(batch.headers), _together(batch.peers)
        payloads, full = batch.payloads, np.ascontiguousarray(batch.full)
        if payloads.dtype != _BIG_ENDIAN or payloads.strides[1] != payloads.itemsize:
            payloads = np.ascontiguousarray(payloads, _BIG_ENDIAN)
        count = self._lib.take_contributions(
            self._at, headers.ctypes.data, payloads.ctypes.data, payloads.strides[0],
            full.ctypes.data, sources.ctypes.data, n, *self._told_at,
        )  # fmt: skip
        complete = np.sort(self._done[: self._told[0]]).astype(np.intp)
        return Taken(count, self._told[1], complete)

    def seal(self, slots: Indices) -> bool:
        """Sums of slots in which all copies are become their results; returns whether they did:
        not if copies are yet to be added and some lane might overflow."""
        slots = np.ascontiguousarray(slots, np.int64)
        return bool(self._lib.seal_sums(self._at, slots.ctypes.data, len(slots)))

    def write(self, slots: Indices, wire: Wire) -> npt.NDArray[np.bool_]:
        """Writes the results of slots, as they are sent but for which child they are for; returns
        (n,) which of them have a payload.

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
