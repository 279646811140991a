# SPDX-License-Identifier: Apache-2.0
"""Formats links and names of nodes as short labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from topologies.model.topology import Costs, Link, Node, Topology
from topologies.model.units import rate_text, time_text


def times(number: int, text: str) -> str:
    """Prefixes a text with the number of links that it applies to."""
    return text if number == 1 else f"{number} x {text}"


def rates(link: Link) -> str:
    """Formats the rates of a link; separately by direction if they differ."""
    up, down = rate_text(link.forward.rate, 4), rate_text(link.backward.rate, 4)
    if up == down:
        return up
    return f"↑{up} ↓{down}"


def _size(count: int) -> str:
    for factor, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= factor and count % (factor // 4) == 0:
            return f"{count / factor:g} {unit}"
    return f"{count} B"


def faults(link: Link) -> tuple[str, ...]:
    """Formats each impairment of a link; separately by direction if they differ."""
    words: list[str] = []
    for name in ("loss", "duplicate", "reorder", "corrupt"):
        up, down = getattr(link.forward, name), getattr(link.backward, name)
        if up == down and up:
            words.append(f"{name} {100 * up:g} %")
        else:
            words += [f"↑{name} {100 * up:g} %"] if up else []
            words += [f"↓{name} {100 * down:g} %"] if down else []
    return tuple(words)


def faults_at(topology: Topology, host: Node) -> list[str]:
    """Formats the impairments of a host's links, those of links to the same switch together."""
    links = topology.links_of(host.name)
    apart = len({link.b for link in links}) > 1
    found = Counter((link.b, text) for link in links for text in faults(link))
    return [
        f"{switch}: {times(number, text)}" if apart else times(number, text)
        for (switch, text), number in found.items()
    ]


def costs(of: Costs) -> str:
    """Formats costs; "" if there are none."""
    hosts = [f"{time_text(of.host_per_packet)} a frame"] if of.host_per_packet else []
    hosts += [f"{time_text(of.host_per_byte)} a byte"] if of.host_per_byte else []
    parts = ["framing (24 bytes a frame)"] if of.framing else []
    parts += [f"switches {time_text(of.switch_latency)} a packet"] if of.switch_latency else []
    parts += [f"workers' hosts {' and '.join(hosts)}"] if hosts else []
    if of.interrupt_interval:
        parts += [f"interrupts of hosts every {time_text(of.interrupt_interval)}"]
    parts += [f"servers {rate_text(of.server_rate)} of payloads"] if of.server_rate else []
    return f"beside bytes on links: {', '.join(parts)}" if parts else ""


def alike(topology: Topology, host: Node) -> tuple[Link, ...]:
    """Returns the host's first link and others to the same switch with the same rates."""
    first, *others = topology.links_of(host.name)
    same = (one for one in others if (one.b, rates(one)) == (first.b, rates(first)))
    return (first, *same)


def in_box(topology: Topology, host: Node) -> str:
    """Formats the links of a host for its box."""
    links = alike(topology, host)
    return times(len(links), rates(links[0]))


# Properties that all links may share, by field.
SHARED: dict[str, Callable[[float], str]] = {
    "delay": lambda value: f"delay {time_text(value)}",
    "queue_bytes": lambda value: f"queue {_size(int(value))}",
    "ecn_bytes": lambda value: f"ECN above {_size(int(value))}" if value else "no ECN",
    "mtu": lambda value: f"MTU {value:g}",
}


def few(names: Sequence[str]) -> str:
    """Abbreviates names: runs of three or more neighbours become first..last."""
    runs: list[list[str]] = []
    for name in names:
        letters = name.rstrip("0123456789")
        number = name[len(letters) :]
        last = runs[-1][-1] if runs else ""
        if number and last == f"{letters}{int(number) - 1}":
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(", ".join(run) if len(run) < 3 else f"{run[0]}..{run[-1]}" for run in runs)
