# SPDX-License-Identifier: Apache-2.0
"""The systems that PHub's evaluation compares, as topologies and jobs of virtual time.

Published figures and set-up: Luo et al., "Parameter Hub", SoCC 2018, its authors' posters, and
their artifact (Luo-Liang/incubator-mxnet, branch paper, example/image-classification/setup*.sh).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workloads.architectures.registry import keys_of

__all__ = [
    "COPY_NS",
    "LINKS",
    "MXNET",
    "MXNET_IB",
    "PBOX",
    "PSHARD",
    "RATES",
    "SLICE",
    "SUM_RATE",
    "SWITCHES",
    "SYSTEMS",
    "WORKERS",
    "System",
    "job",
    "model_bytes",
    "topology",
]

WORKERS = 8
RATES = (10, 56)  # Gbit/s of links
LINKS = 10  # of a PBox
CHUNK_BYTES = 16_000  # of a packet's payload
# Where keys are whole: a window of their longest part then takes no more than a server may have.
WHOLE_CHUNK_BYTES = 14_000
SLICE = 8_000  # parameters: two packets; PHub's chunks have 8,192
_MTU = 16_300
_COALESCED = 64  # packets that hosts get at a time
_WINDOW = 256
_BYTES = 4  # of a parameter
# The poster's breakdown of an iteration of MXNet with ResNet-269 (read off; 56 Gbit/s): 0.75 s of
# data copies, 0.34 s of sums. With servers at workers 2 (N - 1) / N of the gradients pass a host
# each way, and its server sums all N copies of its N-th.
_COPIES, _SUMS, _OF = 0.75, 0.34, "resnet269-v2"


def model_bytes(model: str) -> int:
    """Returns the bytes of a model's gradients."""
    return _BYTES * sum(key.parameters for key in keys_of(model))


COPY_NS = 1e9 * _COPIES / (2 * (WORKERS - 1) / WORKERS * model_bytes(_OF))  # a byte, each way
SUM_RATE = 8e-9 * model_bytes(_OF) / _SUMS  # Gbit/s


@dataclass(frozen=True)
class System:
    """A system.

    name: of points. meaning: for readers.
    placement: of servers.
    whole: Keys are whole up to 4 MiB, as in MXNet; else slices of 32 KiB.
    copies, sums: Hosts take time to copy, and servers to sum.
    links: of a server's host.
    """

    name: str
    meaning: str
    placement: str
    whole: bool = False
    copies: bool = False
    sums: bool = False
    links: int = 1


PBOX = System("PHub", "PBox: one server host with ten links", "ncc", links=LINKS)
PSHARD = System("PShard", "PHub's software, a server at each worker", "cs")
MXNET_IB = System(
    "MXNet IB", "enhanced MXNet: without copies, sums as in MXNet", "cs", True, False, True
)
MXNET = System("MXNet", "stock MXNet: copies and sums", "cs", True, True, True)
SWITCHES = System("switches", "the rack's switch sums", "inc")
SYSTEMS = (PBOX, PSHARD, MXNET_IB, MXNET, SWITCHES)


def topology(
    system: System,
    rate: float,
    workers: int = WORKERS,
    *,
    copies: float = 1.0,
    sums: float = 1.0,
    coalesced: int = _COALESCED,
) -> dict[str, Any]:
    """Returns the topology file: a rack.

    Args:
        rate: Gbit/s of a link.
        copies, sums: Factors of what copies and sums take.
        coalesced: Packets that hosts get at a time.
    """
    interval = coalesced * 8 * CHUNK_BYTES / (rate * 1e9)
    costs = {"interrupt_interval": f"{interval * 1e6:.6g} us"}
    if system.copies:
        costs["host_per_byte"] = f"{COPY_NS * copies:.4g} ns"
    if system.sums:
        costs["server_rate"] = f"{SUM_RATE / sums:.4g} Gbit/s"
    return {
        "name": "phub",
        "defaults": {
            "rate": f"{rate:g} Gbit/s",
            "delay": "10 us",
            "queue_bytes": "1 GiB",
            "mtu": _MTU,
        },
        "racks": [{"workers": workers, "servers": 1}],
        "links": [{"ends": ["s0", "tor0"], "add": True}] * (system.links - 1),
        "costs": costs,
    }


def job(system: System, model: str, milliseconds: float, iterations: int) -> Mapping[str, Any]:
    """Returns the job file. milliseconds: of computing an iteration; 0: none."""
    chunk = WHOLE_CHUNK_BYTES if system.whole else CHUNK_BYTES
    content: dict[str, Any] = {
        "name": "phub",
        "workload": "model",
        "model": model,
        "iterations": iterations,
        "placement": system.placement,
        "chunk_bytes": chunk,
        "window": _WINDOW,
    }
    if milliseconds:
        content["compute"] = {"iteration": f"{milliseconds:.6g} ms"}
    if system.whole:
        # A window holds a server's part of the longest key: MXNet has none.
        part = _BYTES * max(key.parameters for key in keys_of(model)) / WORKERS / chunk
        content["window"] = max(_WINDOW, 1 << math.ceil(math.log2(part)))
        content["streams"] = WORKERS
        content["schedule"] = {
            "order": "fifo", "slice": "whole", "assign": "hashed", "release": "slice",
        }  # fmt: skip
    elif system is not SWITCHES:
        content["schedule"] = {"slice": SLICE}
    return content
