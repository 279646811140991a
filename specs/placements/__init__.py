# SPDX-License-Identifier: Apache-2.0
"""Placements: words that set the servers of a job, its trees, and where optimizer steps are taken.

``KINDS`` is the registry: job files, error texts, the planner and experiments take names from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from specs.placements import in_network, parameter_servers
from specs.placements.kind import Hosts, Kind, of_topology
from topologies.model.topology import Topology

__all__ = ["KINDS", "Hosts", "Kind", "hosts", "kind_of"]

KINDS: tuple[Kind, ...] = (*parameter_servers.PLACEMENTS, *in_network.PLACEMENTS)


def kind_of(word: str | None) -> Kind | None:
    """Returns the placement of a word, None for None. Raises ``KeyError``."""
    return None if word is None else {kind.name: kind for kind in KINDS}[word]


def hosts(kind: Kind | None, topology: Topology, workers: Sequence[str]) -> Hosts:
    """Returns the possible server hosts of a job with these workers; None: without a placement."""
    if kind is not None:
        return kind.hosts(topology, workers)
    allowed = of_topology(topology)
    return Hosts(allowed, allowed)
