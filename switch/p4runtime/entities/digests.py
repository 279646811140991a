# SPDX-License-Identifier: Apache-2.0
"""Turns digest messages into lists for controllers (P4Runtime spec, "DigestEntry").

The pipeline collects messages in bounded memory, equal ones once until they are released. Messages
of a list stay taken until the client acknowledges it or `ack_timeout_ns` is over.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from switch.p4runtime.errors import already_exists, invalid_argument, not_found, unimplemented
from switch.p4runtime.p4info.schema import Digest, Schema
from switch.p4runtime.stubs import p4runtime_pb2
from switch.pipeline.meters_and_digests import DigestMessage, Externs

Update = p4runtime_pb2.Update

# Messages of a list: the maximum, and the default of max_list_size.
MOST, USUAL = 1024, 256


@dataclass
class _Enabled:
    """An enabled digest.

    config: as it was written
    lists: unacknowledged ones by id: (time sent, slots)
    ends: ids of those, oldest first
    """

    digest: Digest
    config: p4runtime_pb2.DigestEntry.Config
    lists: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    ends: deque[int] = field(default_factory=deque)

    @property
    def size(self) -> int:
        if not self.config.max_timeout_ns:
            return 1
        return min(self.config.max_list_size or USUAL, MOST)


class Digests:
    """The digests of one program. Not thread safe: the device has a lock."""

    def __init__(self, schema: Schema, externs: Externs) -> None:
        self._schema = schema
        self._externs = externs
        self._enabled: dict[int, _Enabled] = {}
        # An acknowledgement may arrive late, so list ids are never reused, even if the digest was
        # disabled in between.
        self._last_list = 0

    def number_after(self, other: Digests) -> None:
        """Continues the list ids of another program."""
        self._last_list = max(self._last_list, other._last_list)

    def write(self, kind: int, message: p4runtime_pb2.DigestEntry) -> None:
        """Enables (INSERT), configures (MODIFY) or disables (DELETE) a digest. Raises
        P4RuntimeError."""
        digest = self._schema.digest(message.digest_id)
        if digest.codec is None:
            raise unimplemented(digest.reason)
        enabled = self._enabled.get(digest.id)
        if kind == Update.INSERT and enabled is not None:
            raise already_exists(f"digest {digest.name} is configured already")
        if kind != Update.INSERT and enabled is None:
            raise not_found(f"digest {digest.name} is not configured")
        if kind == Update.DELETE:
            self._externs.enable_digest(digest.name, 0)
            del self._enabled[digest.id]
            return
        for name in ("max_timeout_ns", "max_list_size", "ack_timeout_ns"):
            if getattr(message.config, name) < 0:
                raise invalid_argument(f"digest {digest.name}: {name} is negative")
        config = p4runtime_pb2.DigestEntry.Config()
        config.CopyFrom(message.config)
        if enabled is None:
            enabled = self._enabled[digest.id] = _Enabled(digest, config)
        else:
            enabled.config = config
        self._externs.enable_digest(digest.name, enabled.size)

    def read(self, query: p4runtime_pb2.DigestEntry) -> Iterator[p4runtime_pb2.DigestEntry]:
        """Yields the configuration of one digest, or (digest_id 0) of all enabled ones. Raises
        NOT_FOUND."""
        if query.digest_id == 0:
            wanted = list(self._enabled)
        else:
            digest = self._schema.digest(query.digest_id)
            if digest.id not in self._enabled:
                raise not_found(f"digest {digest.name} is not configured")
            wanted = [digest.id]
        for number in wanted:
            yield p4runtime_pb2.DigestEntry(digest_id=number, config=self._enabled[number].config)

    def acknowledge(self, message: p4runtime_pb2.DigestListAck) -> None:
        """Releases the messages of a list. Raises INVALID_ARGUMENT for an unknown digest; a list
        that is no longer known is not an error."""
        digest = self._schema.digest(message.digest_id)
        enabled = self._enabled.get(digest.id)
        if enabled is not None:
            self._release(enabled, message.list_id)

    def lists(self, now_us: int, ready: bool) -> Iterator[p4runtime_pb2.StreamMessageResponse]:
        """Returns the lists that are due now, given that a client can receive them (ready)."""
        for enabled in self._enabled.values():
            while enabled.ends and self._ends_us(enabled) <= now_us:
                self._release(enabled, enabled.ends[0])
            while ready:
                due = self._due_us(enabled)
                if due is None or due > now_us:
                    break
                messages = self._externs.take(enabled.digest.name, enabled.size)
                yield self._sent(enabled, messages, now_us)

    def due_us(self, ready: bool) -> int | None:
        """Returns when lists() may have more to do, None = not before a packet sends a message."""
        times = [self._ends_us(one) for one in self._enabled.values() if one.ends]
        if ready:
            waits = (self._due_us(one) for one in self._enabled.values())
            times += [one for one in waits if one is not None]
        return min(times, default=None)

    def _due_us(self, enabled: _Enabled) -> int | None:
        count, since_us = self._externs.waiting(enabled.digest.name)
        if not count:
            return None
        if count >= enabled.size:
            return 0
        return since_us + int(enabled.config.max_timeout_ns) // 1000

    def _sent(
        self, enabled: _Enabled, messages: list[DigestMessage], now_us: int
    ) -> p4runtime_pb2.StreamMessageResponse:
        codec = enabled.digest.codec
        assert codec is not None
        self._last_list += 1
        slots = [one.slot for one in messages]
        if enabled.config.ack_timeout_ns:
            enabled.lists[self._last_list] = (now_us, slots)
            enabled.ends.append(self._last_list)
        else:
            self._externs.release(enabled.digest.name, slots)
        response = p4runtime_pb2.StreamMessageResponse()
        digest_list = response.digest
        digest_list.digest_id, digest_list.list_id = enabled.digest.id, self._last_list
        digest_list.timestamp = time.time_ns()
        for one in messages:
            codec.fill(digest_list.data.add(), iter(one.values))
        return response

    def _ends_us(self, enabled: _Enabled) -> int:
        """Returns when the acknowledgement of the oldest list times out."""
        sent_us, _ = enabled.lists[enabled.ends[0]]
        return sent_us + -(-int(enabled.config.ack_timeout_ns) // 1000)

    def _release(self, enabled: _Enabled, list_id: int) -> None:
        found = enabled.lists.pop(list_id, None)
        if found is not None:
            self._externs.release(enabled.digest.name, found[1])
        while enabled.ends and enabled.ends[0] not in enabled.lists:
            enabled.ends.popleft()
