# SPDX-License-Identifier: Apache-2.0
"""Rates and queues of interfaces that the kernel shapes, and the bytes that went through them.

An interface gets a token bucket (htb) whose only class has a queue bounded in bytes (bfifo). Its
class counts bytes as a wire carries them, headers of every segment included and the FCS not, also
when the kernel handles a train of segments as one.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

from topologies.model.topology import LinkQuality

# tc's own defaults for the second bucket let a burst through at far more than the rate or cap it
# far below; one frame or about a millisecond, whichever is larger, meets the rate within 0.3 %.
_BURST_SECONDS = 0.001
_LEAST_BURST = 1600
_QUANTUM = 60000


def burst_bytes(quality: LinkQuality) -> int:
    """Bytes that may pass at once after a pause: about 1 ms at the rate, and at least a frame."""
    return max(_LEAST_BURST, quality.mtu + 100, int(quality.rate / 8 * _BURST_SECONDS))


def shape(interface: str, quality: LinkQuality) -> list[str]:
    """Shell lines that give what leaves an interface its rate and queue."""
    burst = burst_bytes(quality)
    return [
        f"tc qdisc replace dev {interface} root handle 1: htb default 1",
        f"tc class replace dev {interface} parent 1: classid 1:1 htb rate {quality.rate}bit"
        f" ceil {quality.rate}bit burst {burst} cburst {burst} quantum {_QUANTUM}",
        f"tc qdisc replace dev {interface} parent 1:1 handle 10: bfifo limit {quality.queue_bytes}",
    ]


def forward(source: str, destination: str) -> list[str]:
    """Shell lines that make all that arrives on one interface leave by another."""
    return [
        f"tc qdisc replace dev {source} ingress",
        f"tc filter replace dev {source} parent ffff: protocol all prio 1 u32 match u32 0 0"
        f" action mirred egress redirect dev {destination}",
    ]


# Whether the kernel has what `forward` needs.
FORWARD_PROBE = "\n".join([*forward("lo", "lo"), "tc qdisc del dev lo ingress"])


@dataclass(frozen=True)
class Passed:
    """What went through a shaper, or did not. ``packets`` counts a train of segments once."""

    bytes: int
    packets: int
    dropped: int


_SENT = re.compile(r"class htb 1:1 .*?Sent (\d+) bytes (\d+) pkt \(dropped (\d+)", re.DOTALL)


def passed(statistics: str) -> Passed:
    """Reads ``tc -s class show dev IF`` of an interface that ``shape`` set up.

    Raises ``ValueError`` if it has no such class. (Not tc's JSON: iproute2 5.15 has none here.)
    """
    match = _SENT.search(statistics)
    if match is None:
        raise ValueError(f"no htb class 1:1 in {statistics!r}")
    return Passed(*(int(number) for number in match.groups()))


def read(interface: str, prefix: list[str]) -> Passed:
    """Counters of a shaped interface; ``prefix`` runs a command where the interface is."""
    result = subprocess.run(
        [*prefix, "tc", "-s", "class", "show", "dev", interface],
        capture_output=True,
        text=True,
        check=True,
    )
    return passed(result.stdout)
