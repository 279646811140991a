# SPDX-License-Identifier: Apache-2.0
"""One pushed program: its configuration, its pipeline, and the entities that controllers see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from p4.v1 import p4runtime_pb2

from switch.pipeline import Pipeline

from .cells import Cells
from .errors import invalid_argument, unimplemented
from .pre import Replication
from .schema import Schema
from .tables import Tables

Update = p4runtime_pb2.Update
_UPDATES = (Update.INSERT, Update.MODIFY, Update.DELETE)

# Entities that v1model has and this target does not: kind -> (what it is, P4Info's lists of them).
_UNSUPPORTED = {
    "extern_entry": ("externs", ("externs",)),
    "action_profile_member": ("action profiles", ("action_profiles",)),
    "action_profile_group": ("action profiles", ("action_profiles",)),
    "meter_entry": ("meters", ("meters",)),
    "direct_meter_entry": ("direct meters", ("direct_meters",)),
    "value_set_entry": ("parser value sets", ("value_sets",)),
    "digest_entry": ("digests", ("digests",)),
}


class Forwarding:
    """A ForwardingPipelineConfig that was verified, with a pipeline of its own, not yet or already
    forwarding. Not thread safe: the device has a lock."""

    def __init__(
        self, config: p4runtime_pb2.ForwardingPipelineConfig, schema: Schema, pipeline: Pipeline
    ) -> None:
        self.config = config
        self.schema = schema
        self.pipeline = pipeline
        self._tables = Tables(schema, pipeline)
        self._cells = Cells(schema, pipeline)
        self._replication = Replication(pipeline)
        self._writers: dict[str, Callable[[int, Any], None]] = {
            "table_entry": self._tables.write,
            "direct_counter_entry": self._tables.write_direct_counter,
            "counter_entry": self._cells.write_counter,
            "register_entry": self._cells.write_register,
            "packet_replication_engine_entry": self._replication.write,
        }
        self._readers: dict[str, Callable[[Any], Iterator[Any]]] = {
            "table_entry": self._tables.read,
            "direct_counter_entry": self._tables.read_direct_counter,
            "counter_entry": self._cells.read_counter,
            "register_entry": self._cells.read_register,
            "packet_replication_engine_entry": self._replication.read,
        }

    def write(self, update: p4runtime_pb2.Update) -> None:
        """Applies one update. Raises P4RuntimeError with the code the spec gives."""
        if update.type not in _UPDATES:
            raise invalid_argument(f"update type {update.type} is none of INSERT, MODIFY, DELETE")
        kind = update.entity.WhichOneof("entity")
        if kind is None:
            raise invalid_argument("the update holds no entity")
        if kind not in self._writers:
            raise unimplemented(f"{_UNSUPPORTED[kind][0]} are not supported by this target")
        self._writers[kind](update.type, getattr(update.entity, kind))

    def read(self, query: p4runtime_pb2.Entity) -> Iterator[p4runtime_pb2.Entity]:
        """The entities that the query selects. Raises P4RuntimeError, possibly after some."""
        kind = query.WhichOneof("entity")
        if kind is None:
            raise invalid_argument("the entity is not set: name the kind of entity to read")
        if kind not in self._readers:
            what, lists = _UNSUPPORTED[kind]
            wildcard = getattr(query, kind).ByteSize() == 0
            if wildcard and not any(len(getattr(self.config.p4info, name)) for name in lists):
                return  # "read everything": the program has none
            raise unimplemented(f"{what} are not supported by this target")
        for found in self._readers[kind](getattr(query, kind)):
            yield p4runtime_pb2.Entity(**{kind: found})

    def changed_defaults(self) -> list[int]:
        """Ids of tables whose default action is not the program's own."""
        return self._tables.changed_defaults()

    def close(self) -> None:
        """Frees the pipeline."""
        self.pipeline.close()
