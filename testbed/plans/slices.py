# SPDX-License-Identifier: Apache-2.0
"""Servers without help of the network, each of which gets slices of chunks in turn.

A worker sends chunk k when k - W is back and k - 1 was sent, so windows of few slices do not keep
all servers busy: after a burst of W chunks those of the next slice follow the results of the first
one, and when they are through, the results of others have long come, and the next burst begins.
With w slices in a window and S servers that is w + 1 slices in the time of one where w + 1 < S, and
S otherwise; in between, and where a slice does not fit a window, patterns depend on all of both.
So this is no formula but its recurrence, chunk by chunk, with all workers alike:

    sent(k) = max(sent(k - 1) + step, back(k - W))
    in(k)   = max(in(k') + n s, sent(k) + there)         k': the chunk before at the same server
    back(k) = max(back(k') + n t, in(k) + burst(k) + way back)

n s, n t: that a server works on contributions to a chunk, and its link on the results. burst(k):
workers get results one after the other, t apart, and so they send. In a burst those ahead have sent
the next chunks when the last one sends this, and all wait in one line: n (n - 1) / 2 packets
before the first chunk's last one instead of n - 1, and no more than there are in the slice. Where
workers only follow results there is none.

A server on a worker's host sends its contributions to the next burst behind the results of its own
slice, which take L n t. Where one slice is in a window all of the burst waits for that; where there
is one for each server all links have as much to do, and nobody waits for one of them. Between the
two it is taken for linear, as who comes first in each line decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Serving", "sliced"]

_MOST = 1 << 16  # chunks; beyond, the pace of the second half of them is that of all


@dataclass(frozen=True)
class Serving:
    """servers: that slices of so many chunks go to in turn. copies: of a chunk at each of them.
    seconds: for a copy that comes; sending: for one that goes back. there, back: of a chunk alone,
    on its way to the server, with all copies, and back. colocated: whether on workers' hosts."""

    servers: int
    slice: int
    copies: int
    seconds: float
    sending: float
    there: float
    back: float
    colocated: bool = False

    def behind_results(self, window: int) -> float:
        """Seconds that contributions to a burst are late at a host that serves; see the module."""
        if not self.colocated or self.servers < 2:
            return 0.0
        share = (self.servers - max(1.0, window / self.slice)) / (self.servers - 1)
        return math.sqrt(max(0.0, share)) * self.slice * self.copies * self.sending


def sliced(chunks: int, step: float, window: int, serving: Serving) -> float:
    """Seconds until the last of so many chunks is back at the last worker; see the module.

    step: that a worker's link, or another one that all pass, works on a chunk.
    """
    count = min(chunks, _MOST)
    together = serving.copies * serving.seconds
    leaving = serving.copies * serving.sending
    ahead = [_ahead(serving, step, number) for number in range(min(serving.slice, count))]
    there = serving.there - together
    late = serving.behind_results(window)
    come = [float("-inf")] * serving.servers
    gone = come.copy()
    back = [0.0] * count
    sent = float("-inf")
    for chunk in range(count):
        free = back[chunk - window] if chunk >= window else 0.0
        burst = 0.0
        if sent + step > free or not chunk:
            burst = ahead[chunk % serving.slice] + (late if chunk >= window else 0.0)
        sent = max(sent + step, free)
        server = chunk // serving.slice % serving.servers
        come[server] = max(come[server], sent + there) + together
        gone[server] = max(gone[server] + leaving, come[server] + burst + serving.back)
        back[chunk] = gone[server]
    last = max(back)
    if count < chunks:
        half = max(back[: count // 2])
        last += (last - half) / (count - count // 2) * (chunks - count)
    return last


def _ahead(serving: Serving, step: float, number: int) -> float:
    """Seconds that a chunk of a slice in a burst waits for later ones of workers that are ahead."""
    pace = serving.sending / step if step else 0.0  # packets that one sends while another gets one
    left = serving.slice - 1 - number
    others = serving.copies - 1
    few = min(others, int(left / pace)) if pace else others  # that have not sent all of the slice
    line = pace * few * (few + 1) / 2 + left * (others - few)
    return max(0.0, (line + 1 - serving.copies) * serving.seconds)
