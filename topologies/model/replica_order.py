# SPDX-License-Identifier: Apache-2.0
"""Orders the server processes of a job by rank.

Each is replicated by the next one in a ring (``protocol.plan.backup_of``), which should be on
another host, as all processes of a host fail together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from topologies.model.addressing import Addressing, Unit


def units_by_rank(addressing: Addressing, hosts: Iterable[str]) -> tuple[Unit, ...]:
    """Lists the server processes of a job on these hosts, by rank.

    Those of a host alternate between its links, so that a job with few slices uses all links.
    """
    units = [
        unit
        for host in hosts
        for unit in sorted(addressing.units(host), key=lambda unit: unit.core)
    ]
    return tuple(units[position] for position in interleaved([unit.host for unit in units]))


def host_of(unit: str) -> str:
    """Returns the host of a server process by its name."""
    return unit.partition(".")[0]


def exposed(hosts: Sequence[str]) -> int:
    """Counts the processes, given by their hosts, that are followed by one on the same host."""
    return sum(host == hosts[(rank + 1) % len(hosts)] for rank, host in enumerate(hosts))


def interleaved(hosts: Sequence[str]) -> tuple[int, ...]:
    """Orders the positions in ``hosts`` so that as few as possible are ``exposed``.

    None are, unless one host has more than half of all. An order without exposed processes is kept,
    and the order within each host always.
    """
    most = max(Counter(hosts).values(), default=0)
    if exposed(hosts) <= max(0, 2 * most - len(hosts)):
        return tuple(range(len(hosts)))
    waiting: dict[str, list[int]] = {}
    for position, host in enumerate(hosts):
        waiting.setdefault(host, []).append(position)
    order: list[int] = []
    while len(order) < len(hosts):
        last = hosts[order[-1]] if order else ""
        first = hosts[order[0]] if order else ""
        # The host with most processes left, except the last one; of equals the first host, which
        # must not be the last as well.
        left = {one: positions for one, positions in waiting.items() if positions}
        ranked = [(one != last, len(left[one]), one == first) for one in left]
        host = list(left)[ranked.index(max(ranked))]
        order.append(waiting[host].pop(0))
    return tuple(order)
