# SPDX-License-Identifier: Apache-2.0
"""PHub's four placements (SoCC'18, section 2.3): servers sum, and no switch does.

There are one or many servers, on hosts of their own or on those of workers.
"""

from __future__ import annotations

from specs.placements.kind import Kind

_TREES = {"none": "none"}


# A host that is worker and server exchanges nothing with itself: as a worker, it skips its own of n
# shards; as a server, its own of N workers.
def _colocated(workers: int, servers: int) -> float:
    return 2 * (workers + servers - 2) / servers


def _apart(workers: int, servers: int) -> float:
    return 2 * workers / servers


PLACEMENTS = (
    Kind(
        "cc",
        "colocated, central: one server, at a worker's host",
        _colocated,
        "2 (N - 1)",
        _TREES,
        colocated=True,
        central=True,
    ),
    Kind(
        "cs",
        "colocated, sharded: a server at each worker's host",
        _colocated,
        "4 (N - 1) / N",
        _TREES,
        colocated=True,
    ),
    Kind(
        "ncc",
        "non-colocated, central: one server, at a host of its own",
        _apart,
        "2 N",
        _TREES,
        central=True,
    ),
    Kind("ncs", "non-colocated, sharded: servers at hosts of their own", _apart, "2 N / S", _TREES),
)
