# SPDX-License-Identifier: Apache-2.0
"""Builds and parses aggregation packets as Ethernet frames, for hosts without a kernel.

Where a host is called in process (a simulated network, virtual time) no socket adds the Ethernet,
IPv4 and UDP headers; this module does, as the kernel would: no options, don't fragment, TTL 64, no
UDP checksum (RFC 768 allows 0).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from protocol.header import Batch, decode, encode

ETHERTYPE_IPV4 = 0x0800
_ETHERNET = struct.Struct(">6s6sH")
_IPV4 = struct.Struct(">BBHHHBBHII")
_UDP = struct.Struct(">HHHH")
OVERHEAD = _ETHERNET.size + _IPV4.size + _UDP.size
_DONT_FRAGMENT = 0x4000
_UDP_PROTOCOL = 17


class NotForHostsError(ValueError):
    """A frame that a host's kernel would not hand to a UDP socket."""


@dataclass(frozen=True)
class Interface:
    """One host interface: its MAC, its gateway's MAC and its IPv4 address (host order)."""

    mac: bytes
    gateway: bytes
    ipv4: int


def ipv4_checksum(header: bytes) -> int:
    """Returns the one's complement of the one's complement sum of 16-bit words (RFC 1071); even
    length."""
    total: int = sum(struct.unpack(f">{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def envelope(interface: Interface, port: int, peer: tuple[int, int], length: int) -> bytes:
    """Returns the headers of a frame with a UDP datagram of `length` bytes, from a port to a peer
    (IPv4, UDP port)."""
    ethernet = _ETHERNET.pack(interface.gateway, interface.mac, ETHERTYPE_IPV4)
    whole = _UDP.size + length
    fields = [0x45, 0, _IPV4.size + whole, 0, _DONT_FRAGMENT, 64, _UDP_PROTOCOL, 0]
    fields += [interface.ipv4, peer[0]]
    fields[7] = ipv4_checksum(_IPV4.pack(*fields))
    return ethernet + _IPV4.pack(*fields) + _UDP.pack(port, peer[1], whole, 0)


def to_frames(batch: Batch, interface: Interface, port: int) -> list[bytes]:
    """Returns each packet of `batch`, in order, as a frame from `interface` and UDP port `port`."""
    return [
        envelope(interface, port, (int(peer["ipv4"]), int(peer["port"])), len(datagram)) + datagram
        for peer, datagram in zip(batch.peers, encode(batch), strict=True)
    ]


@dataclass(frozen=True)
class Datagram:
    """A UDP datagram with its addresses (IPv4, UDP port) in host order."""

    source: tuple[int, int]
    destination: tuple[int, int]
    payload: bytes


def from_frame(frame: bytes, whole: int | None = None) -> Datagram:
    """Returns the UDP datagram in a frame.

    whole: the frame's length if it is truncated; its headers must be complete, and the payload is
    then truncated too.

    Raises NotForHostsError for frames that are not IPv4 or UDP, with a wrong IPv4 checksum, or with
    inconsistent lengths.
    """
    whole = len(frame) if whole is None else whole
    if len(frame) < OVERHEAD:
        raise NotForHostsError(f"{len(frame)} bytes are no UDP packet")
    _, _, ethertype = _ETHERNET.unpack_from(frame)
    ip = frame[_ETHERNET.size : _ETHERNET.size + _IPV4.size]
    version, _, total, _, _, _, proto, _, source, destination = _IPV4.unpack(ip)
    sport, dport, length, _ = _UDP.unpack_from(frame, _ETHERNET.size + _IPV4.size)
    if ethertype != ETHERTYPE_IPV4 or version != 0x45 or proto != _UDP_PROTOCOL:
        raise NotForHostsError("not a plain IPv4 UDP packet")
    if ipv4_checksum(ip) != 0:
        raise NotForHostsError("wrong IPv4 checksum")
    if total != _IPV4.size + length or whole < _ETHERNET.size + total or length < _UDP.size:
        raise NotForHostsError("lengths do not add up")
    return Datagram((source, sport), (destination, dport), frame[OVERHEAD : OVERHEAD + length - 8])


def from_frames(datagrams: list[Datagram], lanes: int) -> tuple[Batch, int]:
    """Returns datagrams as the batch that a socket would return, and the number of malformed
    ones."""
    return decode([d.payload for d in datagrams], [d.source for d in datagrams], lanes)
