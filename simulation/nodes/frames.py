# SPDX-License-Identifier: Apache-2.0
"""Converts datagrams to frames and back, many at a time, as a host's kernel does.

IPv4 without options, don't fragment, TTL 64, and no UDP checksum (RFC 768 allows 0).
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hosts.native.loader import load_native
from protocol.frames import ETHERTYPE_IPV4, OVERHEAD, Interface
from protocol.header import (
    HEADER,
    HEADER_BYTES,
    LANE,
    LANE_BYTES,
    PEER,
    Array,
    Batch,
    decode_rows,
    opaque,
    packet_bytes,
    parts_of,
    peer_array,
)
from simulation.links.trains import Frames, Lengths
from switch.ports.paced_line import address

_UDP = 17
_DONT_FRAGMENT = 0x4000


class Arrived(NamedTuple):
    """UDP datagrams: (n, stored) leading bytes, (n,) lengths, sources and destinations; and when
    (ps) they reached the host."""

    datagrams: npt.NDArray[np.uint8]
    lengths: Lengths
    sources: Array
    targets: Array
    at: int = 0

    def select(self, rows: Any) -> Arrived:
        """Selects the datagrams of `rows`."""
        return Arrived(
            self.datagrams[rows],
            self.lengths[rows],
            self.sources[rows],
            self.targets[rows],
            self.at,
        )


class Framing:
    """Converts packets of one interface and UDP port.

    empty_lanes: lanes of payloads that only occupy the wire; 0: payloads have content.
    """

    empty_lanes = 0

    def __init__(self, interface: Interface, port: int) -> None:
        fields = struct.pack(
            ">6s6sHBBHHHBBHIIHHHH",
            *(interface.gateway, interface.mac, ETHERTYPE_IPV4),
            *(0x45, 0, 0, 0, _DONT_FRAGMENT, 64, _UDP, 0, interface.ipv4, 0),
            *(port, 0, 0, 0),
        )
        self._lib = load_native()
        self._mine = peer_array([(interface.ipv4, port)])
        self._template = np.frombuffer(bytearray(fields), np.uint8)

    def frames(self, batch: Batch) -> tuple[Frames, Lengths]:
        """Converts a batch to frames in order, and their lengths; bytes of a row behind its length
        are no part of the frame."""
        n, full = len(batch), batch.full
        width = LANE_BYTES * batch.payloads.shape[1] if full.any() else 0
        room = batch.room
        if room is not None and room.shape[1] == OVERHEAD + HEADER_BYTES + width:
            frames = room
        else:
            frames = np.empty((n, OVERHEAD + HEADER_BYTES + width), np.uint8)
            headers, words = parts_of(frames[:, OVERHEAD:])
            opaque(headers)[:] = opaque(batch.headers)
            if width:
                words[:] = batch.payloads
        lengths = np.empty(n, np.int64)
        wide = HEADER_BYTES + 4 * (self.empty_lanes or batch.payloads.shape[1])
        peers, whole = np.ascontiguousarray(batch.peers), np.ascontiguousarray(full)
        self._lib.write_envelopes(
            address(self._template), n, address(whole), wide, address(peers), address(frames),
            frames.strides[0], address(lengths),
        )  # fmt: skip
        return frames, lengths

    def packets(self, frames: Frames, lengths: Lengths, lanes: int) -> Batch | None:
        """Converts frames to packets with payloads of `lanes` lanes, as views.

        Returns None unless all are well-formed, for this interface and port, and quickly
        recognized; `arrived` handles the general case.
        """
        n, stored = frames.shape
        wide = packet_bytes(lanes)
        kept = OVERHEAD + (HEADER_BYTES if self.empty_lanes else wide)
        if stored < kept or not frames.flags.c_contiguous:
            return None
        headers, full = np.empty(n, HEADER), np.empty(n, np.bool_)
        sources, lengths = np.empty(n, PEER), np.ascontiguousarray(lengths)
        if not self._lib.read_frames(
            address(frames), stored, n, address(lengths), address(self._mine), wide,
            address(headers), address(full), address(sources),
        ):  # fmt: skip
            return None
        words = np.empty((n, 0), LANE)
        if not self.empty_lanes:
            words = frames[:, OVERHEAD + HEADER_BYTES : kept].view(LANE)
        return Batch(headers, words, full, sources)


def arrived(frames: Frames, lengths: Lengths) -> tuple[Arrived, int]:
    """Extracts the UDP datagrams that a kernel would deliver, and counts the others.

    lengths: (n,) bytes of each whole frame, of which the first are stored.
    """
    n, stored = frames.shape
    if stored < OVERHEAD:
        none = np.zeros(0, PEER)
        return Arrived(frames[:0], lengths[:0], none, none), n
    frames, lengths = np.ascontiguousarray(frames), np.ascontiguousarray(lengths)
    sources, targets, good = np.empty(n, PEER), np.empty(n, PEER), np.empty(n, np.bool_)
    count = load_native().find_datagrams(
        address(frames), stored, n, address(lengths), address(sources), address(targets),
        address(good),
    )  # fmt: skip
    found = Arrived(frames[:, OVERHEAD:], lengths - OVERHEAD, sources, targets)
    if count == n:
        return found, 0
    return found.select(good), n - count


def decode(found: Arrived, lanes: int, *, payload: bool) -> tuple[Batch, int]:
    """Decodes datagrams as ``decode_rows`` does, quickly if all are well-formed."""
    datagrams, lengths, sources, *_ = found
    n, stored = datagrams.shape
    kept = packet_bytes(lanes) if payload else HEADER_BYTES
    if n and stored >= kept and datagrams.strides[1] == 1:
        headers, full = np.empty(n, HEADER), np.empty(n, np.bool_)
        lengths = np.ascontiguousarray(lengths)
        if load_native().read_datagrams(
            datagrams.__array_interface__["data"][0], datagrams.strides[0], n, address(lengths),
            packet_bytes(lanes), address(headers), address(full),
        ):  # fmt: skip
            words = np.empty((n, 0), LANE)
            if payload:
                words = datagrams[:, HEADER_BYTES:kept].view(LANE)
            return Batch(headers, words, full, sources), 0
    return decode_rows(datagrams, lengths, sources, lanes, payload=payload)
