# SPDX-License-Identifier: GPL-2.0-only
"""Tests link impairments in the data plane: the same random draws on every target."""

from __future__ import annotations

import struct
import zlib

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from controller.p4rt.entries import bare, clone_session, deletion, insertion
from controller.p4rt.fabric import of_2_32
from protocol.header import PORT, Op
from protocol.outcomes import Impaired
from protocol.scapy_layer import Aggregation
from tests.packet.node.node_rig import SWITCH_MAC, checksum_holds, lanes, number
from tests.packet.targets import Output, Target


def drawn(seed: int, count: int, port: int, kind: Impaired | int) -> int:
    """The draw of docs/reference/protocol.md, "Impairments": two CRC-32 around x + (x*x | 5)."""
    x = zlib.crc32(struct.pack(">IIHB", seed, count, port, kind))
    x = (x + (x * x | 5)) % 2**32
    return zlib.crc32(struct.pack(">II", x, seed))


class TestImpairments:
    """Bad links made by the data plane: the same draws on every target. Ports 1 to 4 send to 5."""

    PACKETS = 300
    BURST = 25  # BMv2's queues hold 64
    SEED = 77
    DRAWS = {"loss": 0, "duplicate": 1, "reorder": 2, "corrupt": 3}  # noqa: RUF012
    COUNTED = {  # noqa: RUF012
        "loss": Impaired.LOST,
        "duplicate": Impaired.DUPLICATED,
        "reorder": Impaired.REORDERED,
        "corrupt": Impaired.CORRUPTED,
    }

    def impaired(self, target: Target, way: str) -> list[int]:
        cells = target.connection.read([target.plane.p4info.counter_entry(f"{way}.impaired")])
        values = {c.counter_entry.index.index: c.counter_entry.data.packet_count for c in cells}
        return [values[kind] for kind in Impaired]

    @pytest.mark.parametrize(
        ("way", "kind", "port"),
        [
            ("arrival", "loss", 1),
            ("arrival", "duplicate", 2),
            ("arrival", "reorder", 3),
            ("arrival", "corrupt", 4),
            ("departure", "loss", 1),
            ("departure", "duplicate", 2),
            ("departure", "reorder", 3),
            ("departure", "corrupt", 4),
        ],
    )
    def test_draws(self, target: Target, way: str, kind: str, port: int) -> None:
        other = 5
        arrives, leaves = (port, other) if way == "arrival" else (other, port)
        entry = target.plane.p4info.table_entry
        quality = dict.fromkeys(self.DRAWS, 0) | {kind: of_2_32(0.2)}
        key = "ingress_port" if way == "arrival" else "egress_port"
        route = {"destination": (number("10.0.2.1"), 32)}
        entities = [
            entry(
                f"{way}.impairments", {key: port}, f"{way}.impair", {"seed": self.SEED, **quality}
            ),
            clone_session(port, [(port, 1)]),
            entry("forwarding.routes", route, "forward", {"port": leaves, "mac": 1}),
        ]
        target.connection.write([insertion(entity) for entity in entities])
        sent = [
            bytes(
                Ether(dst=SWITCH_MAC)
                / IP(src="10.0.0.1", dst="10.0.2.1")
                / UDP(sport=40000, dport=PORT, chksum=0)
                / Aggregation(op=Op.CONTRIBUTE, job=60001, seq=i, values=lanes(i))
            )
            for i in range(self.PACKETS)
        ]
        before = self.impaired(target, way)

        def since() -> dict[Impaired, int]:
            now = self.impaired(target, way)
            return {k: now[k] - before[k] for k in Impaired if now[k] != before[k]}

        output: Output = []
        for start in range(0, self.PACKETS, self.BURST):

            def complete(more: Output, due: int = start + self.BURST - len(output)) -> bool:
                counts = since()
                lost, copied = counts.get(Impaired.LOST, 0), counts.get(Impaired.DUPLICATED, 0)
                return len(more) == due - lost + copied

            output += target.exchange(arrives, sent[start : start + self.BURST], complete)
        target.connection.write([deletion(bare(entity)) for entity in entities])
        hit = [
            i
            for i in range(self.PACKETS)
            if drawn(self.SEED, i, port, self.DRAWS[kind]) < of_2_32(0.2)
        ]
        assert self.PACKETS * 0.1 < len(hit) < self.PACKETS * 0.3
        assert since() == {self.COUNTED[kind]: len(hit)}
        assert {p for p, _ in output} == {leaves}
        received = [Ether(frame)[Aggregation] for _, frame in output]
        numbers = [packet.seq for packet in received]
        everything = list(range(self.PACKETS))
        if kind == "loss":
            assert numbers == [i for i in everything if i not in hit]
        elif kind == "duplicate":
            assert sorted(numbers) == sorted(everything + hit)
        elif kind == "reorder":
            assert sorted(numbers) == everything
            assert [i for i in numbers if i not in hit] == [i for i in everything if i not in hit]
        else:
            assert numbers == everything
            differing = [p.seq for p in received if p.values != lanes(p.seq)]
            assert differing == hit
            assert not any(checksum_holds(p) for p in received if p.seq in hit)
