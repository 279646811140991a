# SPDX-License-Identifier: Apache-2.0
"""Reads one field of many links at once, in C (native/link.c)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_size_t
from ctypes import c_void_p as pointer
from functools import cache

import numpy as np
import numpy.typing as npt

from hosts.native.loader import check_constants
from simulation.links.link import Link
from simulation.links.native import load_native
from switch.ports.paced_line import address


@cache
def _library() -> ctypes.CDLL:
    library = load_native({"link_fields": (None, [pointer, c_size_t, c_size_t, pointer])})
    check_constants(library, {"link_bytes": ctypes.sizeof(Link)})
    return library


class LinkFields:
    """One field of some links, by name: of a network's thousands of links the values are needed in
    each round, where asking each one would take longer than all else.

    Raises VirtualError without a compiler.
    """

    def __init__(self, links: Sequence[Link], name: str) -> None:
        self._native = _library()
        self._links = list(links)  # kept, as C has their addresses
        self._pointers = np.array([ctypes.addressof(link) for link in links], np.uintp)
        self._values = np.zeros(len(links), np.int64)
        self._given = (
            *(address(self._pointers), len(links)),
            *(getattr(Link, name).offset, address(self._values)),
        )

    def read(self) -> npt.NDArray[np.int64]:
        """Returns the values now (n,), in memory that the next call overwrites."""
        self._native.link_fields(*self._given)
        return self._values
