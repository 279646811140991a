# SPDX-License-Identifier: Apache-2.0
"""Trains: sequences of packets as arrays, so that numpy and the target process many at once.

Each packet of a train has its own time, so a train is equivalent to its packets one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from simulation.errors import TrainError

NEVER = 2**63 - 1
SECOND = 10**12  # ps
LEAST_FRAME = 14  # an Ethernet header

Times: TypeAlias = npt.NDArray[np.int64]
"""(n,) picoseconds since the run began."""
Lengths: TypeAlias = npt.NDArray[np.int64]
"""(n,) bytes of whole frames, without FCS."""
Frames: TypeAlias = npt.NDArray[np.uint8]
"""(n, stored) the first `stored` bytes of each frame, from the Ethernet header on, without FCS."""


def picoseconds(seconds: float) -> int:
    """Converts seconds to the nearest ps; infinity and times out of range become NEVER."""
    return NEVER if seconds >= NEVER / SECOND else round(seconds * SECOND)


@dataclass(slots=True, eq=False)
class Train:
    """n packets that pass one point in this order.

    times: (n,) times of their last bits, non-decreasing.
    frames: (n, stored) leading bytes, read-only, as trains may share them. Bytes behind a frame's
        end are no part of it.
    lengths: (n,) bytes of the whole frames without FCS; bytes that are not stored have no content
        (a chunk that only occupies the wire).
    priorities: (n,) 0 (lowest) .. 7, or None: all 0.
    """

    times: Times
    frames: Frames
    lengths: Lengths
    priorities: npt.NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.times)

    @property
    def stored(self) -> int:
        """Number of stored bytes of each frame."""
        return int(self.frames.shape[1])

    def select(self, rows: Any) -> Train:
        """Selects the packets of `rows` (a slice, a mask or indices)."""
        priorities = self.priorities
        return Train(
            self.times[rows],
            self.frames[rows],
            self.lengths[rows],
            None if priorities is None else priorities[rows],
        )

    def at(self, times: Times) -> Train:
        """Copies the train with other times."""
        return Train(times, self.frames, self.lengths, self.priorities)

    def check(self) -> None:
        """Raises TrainError if the train is invalid."""
        times, lengths = self.times, self.lengths
        if not len(times) == len(self.frames) == len(lengths):
            raise TrainError(
                f"{len(times)} times, {len(self.frames)} frames and {len(lengths)} lengths make no"
                " train"
            )
        if self.priorities is not None and len(self.priorities) != len(times):
            raise TrainError(f"{len(self.priorities)} priorities for {len(times)} packets")
        if len(times) == 0:
            return
        if (times[1:] < times[:-1]).any():
            raise TrainError("the packets of a train are not in the order of their times")
        if self.stored < LEAST_FRAME or int(lengths.min()) < LEAST_FRAME:
            raise TrainError(
                f"frames of {int(lengths.min())} bytes of which {self.stored} are stored; allowed:"
                f" {LEAST_FRAME} and more of each"
            )


def train(times: Any, frames: Frames, lengths: Any = None, priorities: Any = None) -> Train:
    """Builds a checked train. Raises TrainError.

    times: one for all, or n of them.
    lengths: None if whole frames are stored, one for all, or n of them.
    """
    n = len(frames)
    whole = frames.shape[1] if lengths is None else lengths
    made = Train(
        _filled(times, n),
        frames,
        _filled(whole, n),
        None if priorities is None else np.asarray(priorities, np.uint8),
    )
    made.check()
    return made


def _filled(values: Any, n: int) -> npt.NDArray[np.int64]:
    if isinstance(values, int):
        return np.full(n, values, np.int64)
    return np.asarray(values, np.int64)


def joined(trains: Sequence[Train]) -> Train:
    """Joins one or more trains in order (`side_by_side`)."""
    if len(trains) == 1:
        return trains[0]
    priorities = None
    if [one for one in trains if one.priorities is not None]:
        priorities = np.concatenate(
            [
                np.zeros(len(one), np.uint8) if one.priorities is None else one.priorities
                for one in trains
            ]
        )
    return Train(
        np.concatenate([one.times for one in trains]),
        side_by_side([one.frames for one in trains]),
        np.concatenate([one.lengths for one in trains]),
        priorities,
    )


def side_by_side(parts: Sequence[Frames]) -> Frames:
    """Joins one or more arrays of stored frames in order; shorter ones are padded with zeros."""
    if len(parts) == 1:
        return parts[0]
    widths = {one.shape[1] for one in parts}
    if len(widths) == 1:
        return np.concatenate(parts)
    frames = np.zeros((sum(map(len, parts)), max(widths)), np.uint8)
    at = 0
    for one in parts:
        frames[at : at + len(one), : one.shape[1]] = one
        at += len(one)
    return frames
