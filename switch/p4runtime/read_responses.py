# SPDX-License-Identifier: Apache-2.0
"""Packs entities into ReadResponses of a size that clients accept."""

from __future__ import annotations

from collections.abc import Iterator

from switch.p4runtime.stubs import p4runtime_pb2

# Bytes of entities in one ReadResponse: well under a gRPC client's default limit of 4 MB.
_RESPONSE_BYTES = 512 * 1024


class Packer:
    """Fills ReadResponses up to a size."""

    def __init__(self, responses: list[p4runtime_pb2.ReadResponse]) -> None:
        self._responses = responses
        self._size = _RESPONSE_BYTES  # a new response for each query

    def take(self, entities: Iterator[p4runtime_pb2.Entity]) -> None:
        """Adds entities, and responses as needed."""
        for entity in entities:
            size = entity.ByteSize() + 8
            if self._size + size > _RESPONSE_BYTES:
                self._responses.append(p4runtime_pb2.ReadResponse())
                self._size = 0
            self._responses[-1].entities.append(entity)
            self._size += size
