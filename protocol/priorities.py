# SPDX-License-Identifier: Apache-2.0
"""The network priority of a packet, which its stream's number says.

Numbers below CLASSED are of jobs without classes of urgency, and have priority 0, the lowest. From
CLASSED on, bits 6 to 4 are the priority, and bits 3 to 0 tell apart the streams of that priority.
p4src/parser.p4 has the same rule.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from protocol.header import HEADER

PRIORITIES = 8
CLASSED = 128
STREAM_BYTE = HEADER.fields["stream"][1]  # type: ignore[index]  # a structured type has fields
"""Where a packet's header has the number of its stream."""
STREAMS_OF_A_PRIORITY = 16
"""How many streams of one job may have the same priority, if the job has classes."""

Streams = TypeVar("Streams", int, npt.NDArray[np.integer])

_SHIFT = 4


def priority_of(stream: Streams) -> Streams:
    """Returns the network priority of each stream, 0 (lowest) to 7, by its number, 0 to 255."""
    return (stream >> _SHIFT) % PRIORITIES * (stream // CLASSED)


def stream_number(priority: int, index: int) -> int:
    """Returns the number of stream `index` among those of one priority, in a job with classes."""
    if not 0 <= priority < PRIORITIES:
        raise ValueError(f"priority {priority}: it must be 0 to {PRIORITIES - 1}")
    if not 0 <= index < STREAMS_OF_A_PRIORITY:
        raise ValueError(
            f"stream {index} of priority {priority}: it must be 0 to {STREAMS_OF_A_PRIORITY - 1}"
        )
    return CLASSED + (priority << _SHIFT) + index
