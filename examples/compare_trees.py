# SPDX-License-Identifier: Apache-2.0
"""Where are gradients summed fastest? 4 MB of them on four racks, in virtual time.

python examples/compare_trees.py
"""

import rackhub

racks = rackhub.Topology.build(
    "leaf-spine",
    racks=4,
    workers=4,
    cores=2,
    link={"rate": "10 Gbit/s", "delay": "5 us", "queue_bytes": "4 MiB", "mtu": 9000},
    uplink={"rate": "40 Gbit/s"},
)
sizes = {"name": "sizes", "workload": "layers", "layers": ["4 MB"], "iterations": 2}
empty = {"payload": "none", "chunk_bytes": "8 KiB", "window": 16}  # packets only occupy the wire
print(racks)
for tree in ("two-level", "tor", "none"):
    result = rackhub.run(racks, {**sizes, **empty}, clock="virtual", tree=tree)
    milliseconds = 1000 * result.median_iteration_seconds
    busiest = max(row["bytes"] or 0 for row in result.links) / 1e6
    print(f"{tree:9} {milliseconds:5.1f} ms an iteration, {busiest:4.1f} MB on the busiest link")
