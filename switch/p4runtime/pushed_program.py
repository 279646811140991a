# SPDX-License-Identifier: Apache-2.0
"""One pushed program: its configuration, its pipeline, and the entities that controllers see."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from switch.p4runtime.entities.action_profiles import Profiles
from switch.p4runtime.entities.counters_registers import Cells
from switch.p4runtime.entities.digests import Digests
from switch.p4runtime.entities.direct_resources import Extras
from switch.p4runtime.entities.entry import Entry
from switch.p4runtime.entities.idle_timeouts import Ageing
from switch.p4runtime.entities.meters import DirectMeters, Meters
from switch.p4runtime.entities.packet_replication import Replication
from switch.p4runtime.entities.tables import Tables, key_of
from switch.p4runtime.entities.value_sets import ValueSets
from switch.p4runtime.errors import invalid_argument, unimplemented
from switch.p4runtime.p4info.schema import Schema, Table
from switch.p4runtime.stubs import p4runtime_pb2
from switch.pipeline import Pipeline
from switch.pipeline.meters_and_digests import Externs

Update = p4runtime_pb2.Update
_UPDATES = (Update.INSERT, Update.MODIFY, Update.DELETE)
_NO_EXTERNS = "externs are not supported by this target"

_Write = Callable[[int, Any], None]
_Read = Callable[[Any], Iterator[Any]]

# Most entries of one IdleTimeoutNotification.
_TOGETHER = 1024


class Forwarding:
    """A verified ForwardingPipelineConfig with a pipeline of its own, committed or not. Not thread
    safe: the device has a lock."""

    def __init__(
        self, config: p4runtime_pb2.ForwardingPipelineConfig, schema: Schema, pipeline: Pipeline
    ) -> None:
        self.config = config
        self.schema = schema
        self.pipeline = pipeline
        self.externs = externs = Externs(pipeline)
        self._ageing = Ageing(externs)
        extras = Extras(schema, externs, self._ageing)
        profiles = Profiles(schema, pipeline)
        self.tables = tables = Tables(schema, pipeline, profiles, extras)
        value_sets = ValueSets(schema, pipeline)
        meters, direct_meters = Meters(schema, externs), DirectMeters(schema, tables, extras)
        self.digests = digests = Digests(schema, externs)
        # Other programs send nothing by themselves.
        self.speaks = bool(schema.digests) or any(one.ages for one in schema.tables.values())
        cells = Cells(schema, pipeline)
        replication = Replication(pipeline)
        self._entities: dict[str, tuple[_Write, _Read]] = {
            "table_entry": (tables.write, tables.read),
            "direct_counter_entry": (tables.write_direct_counter, tables.read_direct_counter),
            "action_profile_member": (profiles.write_member, profiles.read_member),
            "action_profile_group": (profiles.write_group, profiles.read_group),
            "value_set_entry": (value_sets.write, value_sets.read),
            "counter_entry": (cells.write_counter, cells.read_counter),
            "register_entry": (cells.write_register, cells.read_register),
            "meter_entry": (meters.write, meters.read),
            "direct_meter_entry": (direct_meters.write, direct_meters.read),
            "digest_entry": (digests.write, digests.read),
            "packet_replication_engine_entry": (replication.write, replication.read),
        }

    def write(self, update: p4runtime_pb2.Update) -> None:
        """Applies one update. Raises P4RuntimeError with the code of the spec."""
        if update.type not in _UPDATES:
            raise invalid_argument(f"update type {update.type} is none of INSERT, MODIFY, DELETE")
        kind = update.entity.WhichOneof("entity")
        if kind is None:
            raise invalid_argument("the update holds no entity")
        if kind not in self._entities:
            raise unimplemented(_NO_EXTERNS)
        self._entities[kind][0](update.type, getattr(update.entity, kind))

    def read(self, query: p4runtime_pb2.Entity) -> Iterator[p4runtime_pb2.Entity]:
        """Yields the entities that the query selects. Raises P4RuntimeError, possibly after
        some."""
        kind = query.WhichOneof("entity")
        if kind is None:
            raise invalid_argument("the entity is not set: name the kind of entity to read")
        if kind not in self._entities:
            if query.extern_entry.ByteSize() == 0 and not self.config.p4info.externs:
                return  # "read everything" includes them: the program has none
            raise unimplemented(_NO_EXTERNS)
        for found in self._entities[kind][1](getattr(query, kind)):
            yield p4runtime_pb2.Entity(**{kind: found})

    def notices(self, now_us: int, ready: bool) -> list[p4runtime_pb2.StreamMessageResponse]:
        """Returns the messages that are due at this time, given that a client can receive them
        (ready)."""
        found = list(self.digests.lists(now_us, ready))
        expired = self._ageing.expired(now_us)
        for first in range(0, len(expired), _TOGETHER):
            found.append(_idle(expired[first : first + _TOGETHER]))
        return found

    def due_us(self, ready: bool) -> int | None:
        """Returns when notices() may have more to send, None = not before a packet leaves a
        message."""
        times = (self.digests.due_us(ready), self._ageing.due_us())
        return min((one for one in times if one is not None), default=None)

    def close(self) -> None:
        """Frees the pipeline."""
        self.pipeline.close()


def _idle(entries: Sequence[tuple[Table, Entry]]) -> p4runtime_pb2.StreamMessageResponse:
    response = p4runtime_pb2.StreamMessageResponse()
    response.idle_timeout_notification.timestamp = time.time_ns()
    for table, entry in entries:
        notified = response.idle_timeout_notification.table_entry.add()
        notified.CopyFrom(key_of(table, entry))
        notified.controller_metadata = entry.controller_metadata
        notified.metadata = entry.metadata
        notified.idle_timeout_ns = entry.idle_timeout_ns
    return response
