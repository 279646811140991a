# SPDX-License-Identifier: Apache-2.0
"""Mean delay by packet loss, given the transport's loss detection.

A worker probes a sequence number when a result arrives whose contribution was sent more than a
quarter of a round trip later (``hosts/native/loss_detection.c``); without one, the RTO has to
expire. Windows advance in order: while a chunk is missing the rest of its window completes, the
links fall idle, and after the recovery a whole window leaves at once. An iteration consists of such
turns:

- The first missing chunk is the j-th with probability (1 - p)^j p; the turn covers W + j chunks,
  whose losses are detected together with it.
- It costs a probe and its answer, the retransmission, and the next window: three times the latency
  of a single chunk.

At the end of an iteration nothing is sent later: the last losses wait for an RTO, and so does each
lost retransmission, without backoff after progress. (Earlier, later results reveal those, too.)
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass

from hosts.worker.round_trips import LEAST_PACKETS
from hosts.worker.transport import WorkerTransport

# The transport's bounds of an RTO, in seconds.
_USUAL = inspect.signature(WorkerTransport).parameters
MIN_RTO, MAX_RTO = (float(_USUAL[name].default) for name in ("rto_least", "rto_most"))
_OFTEN = 0.05
_ENOUGH = 1e-9  # rounds of retransmission that are less probable are left out


@dataclass(frozen=True)
class LossProfile:
    """The loss on a chunk's way.

    edges: for each class of links, the loss probability of a packet and the number of links that a
        chunk's contributions pass, and its results again.
    way: links from a worker to the root.
    """

    edges: tuple[tuple[float, int], ...]
    way: int

    @property
    def chance(self) -> float:
        """Probability that any packet of a chunk is lost."""
        return -math.expm1(self._whole)

    @property
    def _whole(self) -> float:
        """Logarithm of the probability that no packet of a chunk is lost, which itself may be too
        small for a float."""
        return 2 * sum(count * math.log1p(-loss) for loss, count in self.edges)

    @property
    def retransmit_chance(self) -> float:
        """Probability that the recovery of a lost chunk loses a packet: the probe, its answer, the
        retransmission, or, after a lost contribution, a result on any link."""
        worst = max((loss for loss, _ in self.edges), default=0.0)
        return -math.expm1(self._whole / 4 + 2.5 * self.way * math.log1p(-worst))


def mean_loss_delay(
    chunks: int, step: float, fill: float, window: int, lossy: LossProfile, own: float | None = None
) -> float:
    """Computes the mean seconds that losses add to an iteration.

    step: seconds of a chunk at the bottleneck.
    fill: round trip of a single chunk, in seconds.
    own: seconds of a chunk on a worker's link, where it queues before its timer starts; None: that
        link is the bottleneck.
    """
    chance = lossy.chance
    if not chance:
        return 0.0
    held = min(window, chunks)
    least = max(MIN_RTO, LEAST_PACKETS * step)
    most = max(MAX_RTO, least)
    waits = 0.0 if own is None else held * max(0.0, step - own)
    timeout = min(max(least, 2 * max(fill, waits)), most)
    # In the last window retransmissions are lost in further rounds, each with an RTO.
    further, power = 0.0, chance
    for _ in range(60):
        power *= lossy.retransmit_chance
        any_ = _any(power, held)
        if any_ < _ENOUGH:
            break
        further += any_ * (timeout + 2 * fill)
    margin = min(held, int(fill / 4 / step) + 1 if step else 1)
    unseen = _any(chance, margin)
    at_end = 2 * fill * _any(chance, held) + unseen * timeout + further
    turns = max(0, chunks - window) / (window + 1 / chance)
    return turns * 3 * fill + at_end


def may_repeat_timeouts(chunks: int, window: int, lossy: LossProfile) -> bool:
    """True if lost retransmissions are so frequent that iterations differ in their number of
    timeouts, so that a mean over few iterations is inaccurate."""
    return _any(lossy.chance * lossy.retransmit_chance, min(window, chunks)) > _OFTEN


def _any(chance: float, count: int) -> float:
    """Probability of at least one event in `count` trials."""
    return -math.expm1(count * math.log1p(-chance)) if chance < 1 else 1.0
