# SPDX-License-Identifier: Apache-2.0
"""Tests that memory is reused only if it is unreferenced."""

from __future__ import annotations

import numpy as np
import pytest

from hosts.data.array_pool import ArrayPool


@pytest.mark.parametrize(
    "part",
    [lambda a: a, lambda a: a[3:5].reshape(-1), lambda a: a.view(np.uint8).data, lambda a: a.T],
    ids=["whole", "rows", "buffer", "transposed"],
)
def test_referenced_buffers_are_not_reused(part):
    memory = ArrayPool()
    first = memory.empty((10, 4096), np.float32)
    first[:] = 1
    kept = part(first)
    del first
    memory.empty((10, 4096), np.float32)[:] = 2
    assert (np.frombuffer(np.ascontiguousarray(kept), np.float32) == 1).all()


def test_released_buffers_are_reused():
    memory = ArrayPool()
    first = memory.empty((10, 4096), np.float32)
    address = first.ctypes.data
    del first
    again = memory.empty((9, 4096), ">i4")
    assert (again.ctypes.data, again.shape, again.dtype) == (address, (9, 4096), np.dtype(">i4"))


def test_nothing_has_no_memory():
    assert ArrayPool().empty((0, 256), np.float32).shape == (0, 256)
