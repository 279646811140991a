# SPDX-License-Identifier: Apache-2.0
"""What lost packets cost, by how the transport finds them (``hosts.worker.loss_detection``).

A worker asks about a number as soon as the result of one is there that was sent later, by more than
a quarter of a round trip; where there is none, a timer has to ring. Windows go on in order, so
while a chunk is missing the rest of its window comes, the links get idle, and when it is found a
whole window leaves at once. An iteration is made of such turns:

- The first chunk that is missing is the j-th with (1 - p)^j p; the turn takes W + j chunks along,
  whose losses are found together with it.
- It costs the way of a question and its answer, of what is sent again, and of the next window:
  three times that of a chunk alone.

At the end of an iteration nothing is sent later: the last ones take a timeout, and so does what is
lost again of what is sent again, each time: who has just got on asks as soon as at first. (Before,
later results tell of that, too.)
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass

from hosts.worker.round_trips import LEAST_PACKETS
from hosts.worker.transport import WorkerTransport

__all__ = ["MIN_RTO", "LossProfile", "may_repeat_timeouts", "mean_loss_delay"]

# Of the transport: a timeout is at least, and at most, of so many seconds.
_USUAL = inspect.signature(WorkerTransport).parameters
MIN_RTO, MAX_RTO = (float(_USUAL[name].default) for name in ("rto_least", "rto_most"))
_OFTEN = 0.05
_ENOUGH = 1e-9  # of a probability of yet another round


@dataclass(frozen=True)
class LossProfile:
    """edges: chance that a packet is lost on a link, and how many such links a chunk's
    contributions pass, and its results again. way: links from a worker to the root."""

    edges: tuple[tuple[float, int], ...]
    way: int

    @property
    def chance(self) -> float:
        """That something of a chunk is lost."""
        return -math.expm1(self._whole)

    @property
    def _whole(self) -> float:
        """The logarithm of the chance that nothing of a chunk is lost, which may be too small for
        a float itself."""
        return 2 * sum(count * math.log1p(-loss) for loss, count in self.edges)

    @property
    def retransmit_chance(self) -> float:
        """That of one which was lost something is again: of the question and its answer, what is
        sent again, and, if it was a contribution, its results on all links."""
        worst = max((loss for loss, _ in self.edges), default=0.0)
        return -math.expm1(self._whole / 4 + 2.5 * self.way * math.log1p(-worst))


def mean_loss_delay(
    chunks: int, step: float, fill: float, window: int, lossy: LossProfile, own: float | None = None
) -> float:
    """Seconds that losses add to an iteration, on average.

    step: of a chunk at the bottleneck; fill: there and back alone; own: of a chunk on a worker's
    link, where it waits before its timer begins; None: that is the bottleneck.
    """
    chance = lossy.chance
    if not chance:
        return 0.0
    held = min(window, chunks)
    least = max(MIN_RTO, LEAST_PACKETS * step)
    most = max(MAX_RTO, least)
    waits = 0.0 if own is None else held * max(0.0, step - own)
    timeout = min(max(least, 2 * max(fill, waits)), most)
    # In the last window what is sent again is lost again in further rounds, each with a timer.
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
    """Whether so many windows lose again what is sent again that an iteration takes no timeout,
    one or several, by chance: a mean of few tells little then."""
    return _any(lossy.chance * lossy.retransmit_chance, min(window, chunks)) > _OFTEN


def _any(chance: float, count: int) -> float:
    """That at least one of so many is hit."""
    return -math.expm1(count * math.log1p(-chance)) if chance < 1 else 1.0
