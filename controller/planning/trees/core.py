# SPDX-License-Identifier: Apache-2.0
"""One core as the only switch that sums."""

from __future__ import annotations

from controller.planning.tree import Child, PlanRefusedError, TreeNode
from controller.planning.trees.parts import Parts, Ranks, ServersDisagreeError


def core_alone(parts: Parts, first: int, stream: int, servers: Ranks) -> list[TreeNode]:
    """Plans a core with all workers as its children, on the way from each to every server."""
    parts.check_flat("the core")
    cores = [core.name for core in parts.topology.cores]
    if not cores:
        raise PlanRefusedError(
            f"{parts.topology.name} has no core, which tree core needs; use two-level or tor"
        )
    common = set(cores)
    for _, worker in parts.workers:
        for rank in servers:
            passed = parts.addressing.path(worker, parts.servers[rank])
            if not set(cores) & set(passed):
                raise PlanRefusedError(
                    f"packets from {worker} to {parts.names((rank,))} pass no core, only"
                    f" {', '.join(passed)}; tree core needs servers in racks where the job has"
                    " no workers, two-level and tor do not"
                )
            common &= set(passed)
    if not common:
        raise ServersDisagreeError(
            f"tree core: no core is on the way from all workers to {parts.names(servers)}"
        )
    if not common - parts.avoid:
        raise PlanRefusedError(f"tree core without {parts.avoided()}: no other core would do")
    core = min(common - parts.avoid, key=cores.index)
    children = []
    for sender, (rank, worker) in enumerate(parts.workers):
        ways = {parts.arrival(worker, parts.servers[server], core) for server in servers}
        if len(ways) > 1:
            raise ServersDisagreeError(
                f"stream {stream} has servers {parts.names(servers)}, and {worker} reaches"
                f" {core} differently for each"
            )
        port, mac = ways.pop()
        address = parts.addressing.address(worker)
        children.append(Child(sender, worker, rank, 0, 1, address, port, mac))
    return [TreeNode(first, core, (), tuple(children), None)]


def core_under_server(parts: Parts, first: int, stream: int, servers: Ranks) -> list[TreeNode]:
    """Plans such a core under the server."""
    return parts.under_server(core_alone(parts, first + 1, stream, servers), first, servers)
