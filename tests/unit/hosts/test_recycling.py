# SPDX-License-Identifier: Apache-2.0
"""Tests that memory is reused only if it is unreferenced."""

from __future__ import annotations

import resource
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosts.data.array_pool import ArrayPool
from hosts.data.workspace import Workspace
from switch.ports.paced_line import address
from tests.conftest import ROOT


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


def test_buffers_that_stay_in_use_do_not_hide_others():
    memory = ArrayPool()
    kept = [memory.empty((1 << 16,), np.uint8) for _ in range(100)]
    places = {memory.empty((1 << 16,), np.uint8).ctypes.data for _ in range(1000)}
    assert len(places) < len(kept)


def test_released_buffers_are_reused():
    memory = ArrayPool()
    first = memory.empty((10, 4096), np.float32)
    address = first.ctypes.data
    del first
    again = memory.empty((9, 4096), ">i4")
    assert (again.ctypes.data, again.shape, again.dtype) == (address, (9, 4096), np.dtype(">i4"))


def test_nothing_has_no_memory():
    assert ArrayPool().empty((0, 256), np.float32).shape == (0, 256)


def test_freed_memory_stays_with_the_process():
    """Elsewhere than here, as it is for good. Without it each turn would be new memory."""
    turns = """
import resource, sys
import numpy as np
from hosts.data.array_pool import keep_freed
if sys.argv[1] == "kept":
    keep_freed()
faults = []
for turn in range(6):
    faults.append(-resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    arrays = [np.ones(1 << 17) for _ in range(20)]  # 20 MiB
    del arrays
    faults[-1] += resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(sum(faults[2:]))
"""
    usual, kept = (
        int(subprocess.check_output([sys.executable, "-c", turns, how], cwd=ROOT))
        for how in ("usual", "kept")
    )
    pages = 4 * 20 * (1 << 20) // resource.getpagesize()
    assert usual > pages / 2
    assert kept < pages / 100


@given(st.lists(st.tuples(st.integers(1, 900), st.integers(0, 900), st.booleans()), max_size=40))
@settings(max_examples=60, deadline=None)
def test_packets_on_their_way_keep_their_bytes(turns: list[tuple[int, int, bool]]) -> None:
    space, held = Workspace(), dict[int, np.ndarray]()
    for number, (most, sent, leave) in enumerate(turns):
        room = space.packets(most, 1099)
        assert room.shape == (most, 1099)
        room[:] = 255  # of which some are not sent
        kept = room[:sent]
        kept[:] = number
        space.hold(kept)
        if leave and held:
            del held[next(iter(held))]
        held[number] = kept
        del room, kept
        for which, packets in held.items():
            assert (packets == which).all()


def test_memory_of_packets_is_used_again() -> None:
    space, places = Workspace(), set[int]()
    for _ in range(1000):
        packets = space.packets(64, 1100)
        places.add(address(packets))
        space.hold(packets[:10])  # 11 MB in all, in blocks of 1 MiB
    assert len(places) < 1000 / 4
