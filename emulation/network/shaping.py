# SPDX-License-Identifier: Apache-2.0
"""Shapes interfaces to a rate and a queue with tc, and reads what passed them.

An interface gets a token bucket (htb) whose only class has a queue bounded in bytes (bfifo). The
class counts bytes as on a wire, with the headers of every segment and without the FCS, also when
the kernel handles a train of segments as one packet.

Where a switch cannot pace its ports, the bucket that does serves packets by priority as the switch
would: a class for each, with its own queue.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, replace
from itertools import product

from protocol.header import SERVER_PORTS, VERSION
from protocol.priorities import PRIORITIES, STREAM_BYTE, stream_number
from topologies.model.topology import LinkQuality

# With tc's defaults for the second bucket, bursts far exceed the rate or stay far below it; one
# frame or about a millisecond, whichever is larger, meets the rate within 0.3 %.
_BURST_SECONDS = 0.001
_LEAST_BURST = 1600
_QUANTUM = 60000
_CLASS = 1  # classes 1:10 to 1:17 are those of priorities
_OWN_RATE = 1000  # bit/s that a class has without borrowing, the least that is useful
_HEADER_AT = 20 + 8  # of the aggregation header in an IPv4 packet without options


def burst_bytes(quality: LinkQuality) -> int:
    """Returns the burst size: about 1 ms at the rate, and at least a frame."""
    return max(_LEAST_BURST, quality.mtu + 100, int(quality.rate / 8 * _BURST_SECONDS))


def shape(interface: str, quality: LinkQuality) -> list[str]:
    """Returns shell lines that set the egress rate and queue of an interface."""
    burst = burst_bytes(quality)
    return [
        f"tc qdisc replace dev {interface} root handle 1: htb default 1",
        f"tc class replace dev {interface} parent 1: classid 1:1 htb rate {quality.rate}bit"
        f" ceil {quality.rate}bit burst {burst} cburst {burst} quantum {_QUANTUM}",
        f"tc qdisc replace dev {interface} parent 1:1 handle 10: bfifo limit {quality.queue_bytes}",
    ]


def reshape(interface: str, rate: int, quality: LinkQuality) -> str:
    """Returns a shell line that changes the rate of an interface that is shaped already."""
    changed = replace(quality, rate=rate)
    burst = burst_bytes(changed)
    return (
        f"tc class change dev {interface} parent 1: classid 1:1 htb rate {rate}bit"
        f" ceil {rate}bit burst {burst} cburst {burst} quantum {_QUANTUM}"
    )


def unshape(interface: str) -> str:
    """Returns a shell line that ends the shaping of an interface, if it is shaped."""
    return f"tc qdisc del dev {interface} root 2>/dev/null || true"


def shape_by_priority(interface: str, quality: LinkQuality) -> list[str]:
    """Returns shell lines that set the egress rate of an interface, and a queue for each priority
    of aggregation packets (protocol/priorities.py), the highest served first.

    Other packets have priority 0. Unlike a switch's, the queues do not share their limit.
    """
    rate, burst = f"ceil {quality.rate}bit", burst_bytes(quality)
    bucket = f"burst {burst} cburst {burst} quantum {_QUANTUM}"
    lines = [
        f"tc qdisc replace dev {interface} root handle 1: htb default {_CLASS}0",
        f"tc class replace dev {interface} parent 1: classid 1:1 htb rate {quality.rate}bit {rate}"
        f" {bucket}",
    ]
    for priority in range(PRIORITIES):
        number = f"{_CLASS}{priority}"
        lines += [
            # All that a class sends it borrows, and the lowest `prio` of those that do is first.
            f"tc class replace dev {interface} parent 1:1 classid 1:{number} htb"
            f" rate {_OWN_RATE}bit {rate} {bucket} prio {PRIORITIES - 1 - priority}",
            f"tc qdisc replace dev {interface} parent 1:{number} handle {number}: bfifo"
            f" limit {quality.queue_bytes}",
        ]
    ports = f"{SERVER_PORTS.start} {0x10000 - len(SERVER_PORTS):#x}"
    for priority, end in product(range(1, PRIORITIES), ("sport", "dport")):
        stream = stream_number(priority, 0)
        lines.append(
            f"tc filter add dev {interface} parent 1: protocol ip prio 1 u32"
            f" match u8 0x45 0xff at 0 match ip protocol 17 0xff match ip {end} {ports}"
            f" match u8 {VERSION << 4:#x} 0xf0 at {_HEADER_AT}"
            f" match u8 {stream:#x} 0xf0 at {_HEADER_AT + STREAM_BYTE}"
            f" flowid 1:{_CLASS}{priority}"
        )
    return lines


def forward(source: str, destination: str) -> list[str]:
    """Returns shell lines that redirect all ingress of one interface to another's egress."""
    return [
        f"tc qdisc replace dev {source} ingress",
        f"tc filter replace dev {source} parent ffff: protocol all prio 1 u32 match u32 0 0"
        f" action mirred egress redirect dev {destination}",
    ]


# Fails where the kernel lacks what `forward` needs.
FORWARD_PROBE = "\n".join([*forward("lo", "lo"), "tc qdisc del dev lo ingress"])


@dataclass(frozen=True)
class Passed:
    """Counters of a shaped interface. ``packets`` counts a train of segments once."""

    bytes: int
    packets: int
    dropped: int


_SENT = re.compile(r"class htb 1:1 .*?Sent (\d+) bytes (\d+) pkt \(dropped (\d+)", re.DOTALL)


def passed(statistics: str) -> Passed:
    """Parses ``tc -s class show dev IF`` for an interface that ``shape`` set up.

    Raises ``ValueError`` if it has no such class. iproute2 5.15 has no JSON output for this.
    """
    match = _SENT.search(statistics)
    if match is None:
        raise ValueError(f"no htb class 1:1 in {statistics!r}")
    return Passed(*(int(number) for number in match.groups()))


def read(interface: str, prefix: list[str]) -> Passed:
    """Reads the counters of a shaped interface; ``prefix`` runs a command in its namespace."""
    result = subprocess.run(
        [*prefix, "tc", "-s", "class", "show", "dev", interface],
        capture_output=True,
        text=True,
        check=True,
    )
    return passed(result.stdout)
