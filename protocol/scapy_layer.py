# SPDX-License-Identifier: GPL-2.0-only
"""The aggregation header as a scapy layer, for tests and tools (scapy builds about 1 k packets/s).

    >>> from scapy.all import IP, UDP
    >>> from protocol.scapy_layer import Aggregation
    >>> packet = IP(dst="10.0.0.9") / UDP() / Aggregation(job=1, epoch=1, node=3, values=[7] * 256)

Field names are those of the numpy codec and of the Wireshark dissector. UDP ports default to
47110 on both sides; set `sport` to a worker's own port. It is dissected on any port of servers.
`lanes` and `checksum` are computed when left out. Nothing but tests and tools may import this
module: it carries scapy's licence.
"""

from __future__ import annotations

import struct
from typing import Any

from scapy.fields import (
    BitEnumField,
    BitField,
    ConditionalField,
    Field,
    FlagsField,
    IntField,
    ShortField,
    SignedByteField,
    XByteField,
    XIntField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_bottom_up, bind_layers

from protocol.header import HEADER_BYTES, PORT, SERVER_PORTS, Flag, Op
from protocol.payloads import chunk_hash

# From the least significant bit. The phase of a STATE takes two bits, AGGREGATING 0, PARTIAL 1
# and FINAL 2, so that each of its non-zero values is one bit and can be shown as a flag.
FLAG_NAMES = [
    "OVERFLOW",
    "RETRANSMIT",
    "DIRECT",
    "NONFINITE",
    "PARTIAL",
    "FINAL",
    "ECN",
    "BYPASS",
]

_WITH_PAYLOAD = (Op.CONTRIBUTE, Op.RESULT)


class WordsField(Field[list[Any], bytes]):
    """32-bit words to the end of the packet, in network order, as a list of numbers.

    scapy's FieldListField stops at 100 items and takes a Python object for each.
    """

    __slots__ = ("code",)
    islist = 1

    def __init__(self, name: str, code: str) -> None:
        super().__init__(name, [])
        self.code = code

    def addfield(self, pkt: Packet, s: bytes, val: list[Any] | None) -> bytes:
        """Appends the words to the packet being built."""
        words = val or []
        return s + struct.pack(f"!{len(words)}{self.code}", *words)

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, list[Any]]:
        """Takes every whole word that is left."""
        count = len(s) // 4
        return s[4 * count :], list(struct.unpack(f"!{count}{self.code}", s[: 4 * count]))


class Aggregation(Packet):
    """One aggregation packet: 32 bytes of header, then the payload words if there are any.

    `values` are the int32 lanes of a CONTRIBUTE or RESULT, `floats` the float32 lanes of a DIRECT
    one; both include the padding of a full payload. A dissected packet has them exactly if the
    header says so. When building, `lanes` defaults to their number, and `checksum` to sum(payload
    words) + workers x hash (hash counted once in DIRECT packets).
    """

    name = "Aggregation"
    fields_desc = [  # noqa: RUF012  # the shape scapy asks for
        BitField("version", 1, 4),
        BitEnumField("op", int(Op.CONTRIBUTE), 4, {int(op): op.name for op in Op}),
        FlagsField("flags", 0, 8, FLAG_NAMES),
        ShortField("job", 0),
        ShortField("epoch", 0),
        XByteField("stream", 0),
        XByteField("sender", 0),
        IntField("seq", 0),
        IntField("chunk", 0),
        XIntField("children", 0),
        ShortField("workers", 1),
        SignedByteField("exponent", 0),
        SignedByteField("max_exponent", 0),
        ShortField("lanes", None),
        ShortField("node", 0),
        XIntField("checksum", None),
        ConditionalField(
            WordsField("values", "i"),
            lambda packet: packet.has_payload() and not packet.is_direct(),
        ),
        ConditionalField(
            WordsField("floats", "f"),
            lambda packet: packet.has_payload() and packet.is_direct(),
        ),
    ]

    def is_direct(self) -> bool:
        """Returns true if this packet goes between worker and server in float32."""
        return bool(int(self.flags) & Flag.DIRECT)

    def has_payload(self) -> bool:
        """Returns true if the header announces a payload."""
        if self.op not in _WITH_PAYLOAD or self.lanes == 0:
            return False
        return self.is_direct() or not int(self.flags) & (Flag.OVERFLOW | Flag.NONFINITE)

    def post_build(self, header: bytes, payload: bytes) -> bytes:
        """Fills in defaults: `lanes`, then `checksum`."""
        if self.lanes is None:
            words = (len(header) - HEADER_BYTES) // 4
            header = header[:24] + struct.pack("!H", words) + header[26:]
        if self.checksum is None:
            header = header[:28] + struct.pack("!I", self._checksum(header)) + header[32:]
        return header + payload

    def _checksum(self, packet: bytes) -> int:
        words = struct.unpack(f"!{(len(packet) - HEADER_BYTES) // 4}I", packet[HEADER_BYTES:])
        one = int(chunk_hash(self.job, self.stream, self.seq, self.chunk, self.exponent))
        times = 1 if self.is_direct() else self.workers
        return int(sum(words) + times * one) % 2**32

    def mysummary(self) -> Any:
        """Returns one line, as `packet.summary()` shows it."""
        return self.sprintf(
            "Aggregation %op% job=%job% epoch=%epoch% stream=%stream% seq=%seq% chunk=%chunk%"
            " node=%node% workers=%workers% [%flags%]"
        )


# Dissected on either port, built with both: UDP's own default source port is DNS.
for _port in SERVER_PORTS:
    bind_bottom_up(UDP, Aggregation, dport=_port)
    bind_bottom_up(UDP, Aggregation, sport=_port)
bind_layers(UDP, Aggregation, sport=PORT, dport=PORT)
