# SPDX-License-Identifier: Apache-2.0
"""Tests that processors hand over datagrams together without any difference that could be seen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES
from protocol.priorities import STREAM_BYTE, stream_number
from simulation.links.timeline import Timeline
from simulation.links.trains import NEVER
from simulation.nodes.costs import Core, ProcessingCost
from simulation.nodes.frames import Datagrams
from simulation.nodes.processors import FifoProcessor, Processor, Shows, UrgentFirstProcessor

_COST = ProcessingCost(0, 3, 1)  # 3 ps a byte
_NUMBER = OVERHEAD + HEADER_BYTES  # where these tests number a datagram

# A datagram: when it arrives, its priority, bytes of payload, and whether its effect can be seen.
_Datagram = tuple[int, int, int, bool]
_datagrams = st.lists(
    st.tuples(
        st.integers(0, 300), st.integers(0, 2), st.sampled_from([0, 1, 7, 20]), st.booleans()
    ),
    max_size=40,
)
_events = st.sets(st.integers(1, 3000), max_size=6)


def _frame(number: int, priority: int) -> npt.NDArray[np.uint8]:
    frame = np.zeros(_NUMBER + 1, np.uint8)
    frame[OVERHEAD + STREAM_BYTE], frame[_NUMBER] = stream_number(priority, 0), number
    return frame


def _delivered(
    kind: str, datagrams: list[_Datagram], events: set[int], shows: Shows | None
) -> list[tuple[int, int]]:
    """Returns when a program gets which datagram, by number, if other events happen as well."""
    processor: Processor = FifoProcessor(Core(_COST), shows)
    if kind == "urgent first":
        processor = UrgentFirstProcessor(_COST, Timeline(), shows)
    arrivals = {at: [n for n, one in enumerate(datagrams) if one[0] == at] for at, *_ in datagrams}
    moments = sorted(events if kind == "fifo" else events | arrivals.keys())
    found: list[tuple[int, int]] = []
    now = -1
    while True:
        processor.decide(min((at for at in moments if at > now), default=NEVER))
        coming = [at for at in arrivals if at > now]
        now = min([*coming, processor.at])
        if now == NEVER or not (coming or processor.at < NEVER):
            return found
        for number in arrivals.get(now, ()):
            _, priority, size, _ = datagrams[number]
            length = np.array([OVERHEAD + HEADER_BYTES + size])
            processor.add(now, Datagrams(_frame(number, priority)[None], length, now))
        processor.begin(now)
        if processor.at <= now:
            found += [(now, int(frame[_NUMBER])) for frame in processor.take().frames]


@pytest.mark.parametrize("kind", ["fifo", "urgent first"])
@given(datagrams=_datagrams, events=_events)
def test_what_is_handed_over_together_could_not_be_seen_before(
    kind: str, datagrams: list[_Datagram], events: set[int]
) -> None:
    """The order is that of one by one; what has an effect comes in time, all else before the next
    event at the host."""

    def shows(found: Datagrams) -> npt.NDArray[np.bool_]:
        return np.array([datagrams[number][3] for number in found.frames[:, _NUMBER]])

    singly = _delivered(kind, datagrams, events, None)
    together = _delivered(kind, datagrams, events, shows)
    assert sorted(number for _, number in singly) == list(range(len(datagrams)))
    assert [number for _, number in together] == [number for _, number in singly]
    for (at, number), (handled, _) in zip(together, singly, strict=True):
        if datagrams[number][3]:
            assert at == handled
        assert not any(handled < event <= at for event in events)
        assert at >= handled


@pytest.mark.parametrize("kind", ["fifo", "urgent first"])
def test_a_sum_wakes_its_program_once(kind: str) -> None:
    """Seven contributions of eight wait for the last one."""
    datagrams = [(10, 0, 20, number % 8 == 7) for number in range(32)]

    def shows(found: Datagrams) -> npt.NDArray[np.bool_]:
        return np.array([datagrams[number][3] for number in found.frames[:, _NUMBER]])

    found = _delivered(kind, datagrams, set(), shows)
    ends = [10 + 60 * n for n in range(1, 33)]
    assert [at for at, _ in found] == [ends[n // 8 * 8 + 7] for n in range(32)]
