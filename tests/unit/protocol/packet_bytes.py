# SPDX-License-Identifier: Apache-2.0
"""Packets of a batch as bytes, to compare batches of different layouts."""

from __future__ import annotations

from protocol.header import Batch


def packet_bytes(batch: Batch) -> list[tuple[bytes, bytes, bytes]]:
    """Returns (header, payload, peer) of each packet, in order."""
    return [
        (header.tobytes(), words.tobytes() if full else b"", peer.tobytes())
        for header, words, full, peer in zip(
            batch.headers, batch.payloads, batch.full, batch.peers, strict=True
        )
    ]
