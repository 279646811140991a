# SPDX-License-Identifier: Apache-2.0
"""Table entries, default entries and direct counters (P4Runtime spec, "TableEntry" and
"DirectCounterEntry").

State that the pipeline forwards by is written through; what only controllers use (metadata, the
entry's key as written) is kept here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from switch.p4runtime.entities.action_profiles import Profiles, Target
from switch.p4runtime.entities.checks import Update, check_modifies
from switch.p4runtime.entities.direct_resources import Extras
from switch.p4runtime.entities.entry import Entry
from switch.p4runtime.entities.match import (
    Key,
    decode_action,
    decode_key,
    encode_action,
    encode_key,
)
from switch.p4runtime.errors import (
    already_exists,
    invalid_argument,
    not_found,
    permission_denied,
    resource_exhausted,
)
from switch.p4runtime.p4info.schema import Action, Schema, Table
from switch.p4runtime.stubs import p4runtime_pb2
from switch.pipeline import EntryExists, EntryIsConstant, Pipeline, TableFull

log = logging.getLogger(__name__)


@dataclass
class _Contents:
    """The entries of one table. default None: the program's own."""

    entries: dict[tuple[Key, int], Entry] = field(default_factory=dict)
    default: Entry | None = None


class Tables:
    """The tables of one committed (or saved) program. Not thread safe: the device has a lock."""

    def __init__(
        self, schema: Schema, pipeline: Pipeline, profiles: Profiles, extras: Extras
    ) -> None:
        self._schema = schema
        self._pipeline = pipeline
        self._profiles = profiles
        self._extras = extras
        self._contents = {table_id: _Contents() for table_id in schema.tables}
        for table in schema.tables.values():
            self._add_initial(table)

    def _add_initial(self, table: Table) -> None:
        """Records the entries that the program declares, which the pipeline holds from the start.

        Their priorities count from 1 for the last one (spec, "Constant Tables").
        """
        declared = self._pipeline.program.tables[table.name].entries
        handles = self._pipeline.initial_entries(table.name)
        weakest = min((entry.priority for entry in declared), default=0)
        for entry, handle in zip(declared, handles, strict=True):
            action = self._action_named(table, entry.action_id)
            if action is None:
                log.warning("%s: the action of an entry is not in the P4Info", table.name)
                continue
            key = tuple(entry.key)
            priority = entry.priority - weakest + 1 if table.needs_priority else 0
            self._contents[table.id].entries[key, priority] = Entry(
                action, action.values(entry.args), key, priority, handle, is_const=True
            )

    def _action_named(self, table: Table, program_id: int) -> Action | None:
        """Returns the table's action that has this id in the program, if the P4Info declares it."""
        name = self._pipeline.program.actions[program_id].name
        for action_id in table.allowed:
            if self._schema.actions[action_id].name == name:
                return self._schema.actions[action_id]
        return None

    # -- writing -------------------------------------------------------------------------------

    def write(self, kind: int, message: p4runtime_pb2.TableEntry) -> None:
        """Applies one update. Raises P4RuntimeError with the code of the spec."""
        table = self._schema.table(message.table_id)
        if message.is_const:
            raise invalid_argument(f"{table.name}: is_const is the switch's to set")
        try:
            if message.is_default_action:
                self._write_default(table, kind, message)
            elif kind == Update.INSERT:
                self._insert(table, message)
            elif kind == Update.MODIFY:
                self._modify(table, message)
            else:
                self._delete(table, message)
        except EntryIsConstant as error:  # the program decides, whatever the P4Info says
            raise permission_denied(str(error)) from error

    def _insert(self, table: Table, message: p4runtime_pb2.TableEntry) -> None:
        if table.is_const:
            raise permission_denied(f"{table.name} has const entries: none can be inserted")
        if not table.fields:
            raise invalid_argument(f"{table.name} has no key: only its default can be set")
        self._check_extras(table, message)
        key, priority = self._key(table, message)
        contents = self._contents[table.id]
        if (key, priority) in contents.entries:
            raise already_exists(f"{table.name} has an entry with this key and priority")
        if not message.HasField("action"):
            raise invalid_argument(f"{table.name}: an inserted entry needs an action")
        entry = self._entry(table, message, key, priority)
        try:
            entry.handle = self._pipeline.insert(
                table.name, key, entry.pipeline_action, entry.pipeline_arguments, priority
            )
        except (TableFull, EntryExists, MemoryError) as error:
            self._release(entry.target)
            if isinstance(error, EntryExists):
                raise already_exists(f"{table.name}: {error}") from error
            raise resource_exhausted(str(error)) from error
        self._set_metadata(entry, message)
        contents.entries[key, priority] = entry
        self._extras.write(table, entry, message)
        if message.HasField("counter_data"):
            self._set_counter(table, entry, message.counter_data)

    def _modify(self, table: Table, message: p4runtime_pb2.TableEntry) -> None:
        self._check_extras(table, message)
        entry = self.existing(table, message)
        if message.HasField("action"):
            if table.is_const or entry.is_const:
                raise permission_denied(f"{table.name}: the entry is const, its action stays")
            new = self._entry(table, message, replaced=entry.target)
            self._pipeline.modify(
                table.name, entry.pipeline_handle, new.pipeline_action, new.pipeline_arguments
            )
            self._release(entry.target)
            entry.action, entry.arguments, entry.target = new.action, new.arguments, new.target
            self._set_metadata(entry, message)
        self._extras.write(table, entry, message)
        if message.HasField("counter_data"):
            self._set_counter(table, entry, message.counter_data)

    def _delete(self, table: Table, message: p4runtime_pb2.TableEntry) -> None:
        if table.is_const:
            raise permission_denied(f"{table.name} has const entries: none can be deleted")
        entry = self.existing(table, message)
        if entry.is_const:
            raise permission_denied(f"{table.name}: the entry is const and cannot be deleted")
        self._extras.forget(entry)
        self._pipeline.delete(table.name, entry.pipeline_handle)
        self._release(entry.target)
        del self._contents[table.id].entries[entry.key, entry.priority]

    def _write_default(self, table: Table, kind: int, message: p4runtime_pb2.TableEntry) -> None:
        if kind != Update.MODIFY:
            raise invalid_argument(f"{table.name}: the default entry can only be modified")
        self._check_default_key(table, message)
        self._check_extras(table, message)
        if table.const_default:
            raise permission_denied(f"{table.name} has a const default action")
        if table.action_profile:
            raise permission_denied(f"{table.name} has an action profile: its default is NoAction")
        contents = self._contents[table.id]
        if not message.HasField("action"):
            # Reset to the program's default, direct resources and metadata included.
            self._pipeline.set_default(table.name, None, ())
            contents.default = None
            if table.direct_counter:
                self._pipeline.set_direct_counter(table.name, None, 0, 0)
        else:
            default = self._entry(table, message)
            self._pipeline.set_default(
                table.name, default.pipeline_action, default.pipeline_arguments
            )
            contents.default = default
            self._set_metadata(contents.default, message)
        if message.HasField("counter_data"):
            self._set_counter(table, self._default(table), message.counter_data)

    def _entry(
        self,
        table: Table,
        message: p4runtime_pb2.TableEntry,
        key: Key = (),
        priority: int = 0,
        replaced: Target | None = None,
    ) -> Entry:
        """Parses a message into an entry. Its target is acquired: `_release` it in the end.

        replaced: the entry that is released when the new one is written.
        """
        if table.action_profile:
            target = self._profiles.take(table, message.action, replaced)
            return Entry(None, (), key, priority, target=target)
        action, arguments = decode_action(
            self._schema, table, message.action, default=message.is_default_action
        )
        return Entry(action, arguments, key, priority)

    def _release(self, target: Target | None) -> None:
        if target is not None:
            self._profiles.release(target)

    def _check_extras(self, table: Table, message: p4runtime_pb2.TableEntry) -> None:
        """Checks what an entry carries beside key and action."""
        self._extras.check(table, message)
        if message.HasField("counter_data"):
            self._check_counter(table, message.counter_data)

    def _check_counter(self, table: Table, data: p4runtime_pb2.CounterData) -> None:
        if not table.direct_counter:
            raise invalid_argument(f"{table.name} has no direct counter")
        check_counter_data(table.name, data)

    def _check_default_key(self, table: Table, message: p4runtime_pb2.TableEntry) -> None:
        if len(message.match) or message.priority:
            raise invalid_argument(f"{table.name}: the default entry has no match and priority 0")

    def _key(self, table: Table, message: p4runtime_pb2.TableEntry) -> tuple[Key, int]:
        key = decode_key(table, message.match)
        priority = message.priority
        if table.needs_priority and priority <= 0:
            raise invalid_argument(
                f"{table.name} has ternary, range or optional fields: priority must be above 0"
            )
        if not table.needs_priority and priority:
            raise invalid_argument(
                f"{table.name} has no ternary, range or optional field: priority must be 0"
            )
        return key, priority

    def entries(self, table: Table) -> Iterable[Entry]:
        """Returns all entries but the default one."""
        return self._contents[table.id].entries.values()

    def existing(self, table: Table, message: p4runtime_pb2.TableEntry) -> Entry:
        """Returns the entry with the message's key. Raises INVALID_ARGUMENT, NOT_FOUND."""
        entry = self._contents[table.id].entries.get(self._key(table, message))
        if entry is None:
            raise not_found(f"{table.name} has no entry with this key and priority")
        return entry

    @staticmethod
    def _set_metadata(entry: Entry, message: p4runtime_pb2.TableEntry) -> None:
        entry.controller_metadata = message.controller_metadata
        entry.metadata = message.metadata

    def _set_counter(self, table: Table, entry: Entry, data: p4runtime_pb2.CounterData) -> None:
        self._pipeline.set_direct_counter(
            table.name, entry.handle, data.packet_count, data.byte_count
        )

    def _default(self, table: Table) -> Entry:
        set_by_controller = self._contents[table.id].default
        if set_by_controller is not None:
            return set_by_controller
        program = self._pipeline.program.tables[table.name]
        if program.default_action_id is None:
            return Entry(None, ())
        action = self._action_named(table, program.default_action_id)
        return Entry(action, action.values(program.default_args) if action is not None else ())

    def changed_defaults(self) -> list[int]:
        """Returns the ids of tables whose default entry a controller has written."""
        return [number for number, one in self._contents.items() if one.default is not None]

    # -- reading -------------------------------------------------------------------------------

    def read(self, query: p4runtime_pb2.TableEntry) -> Iterator[p4runtime_pb2.TableEntry]:
        """Yields the entries that a TableEntry selects (spec, "Wildcard Reads" of TableEntry)."""
        if query.table_id == 0:
            if len(query.match) or query.priority or query.HasField("action"):
                raise invalid_argument("reading all tables takes no other filter: give a table_id")
            if query.controller_metadata or query.metadata:
                raise invalid_argument("reading all tables takes no other filter: give a table_id")
            tables: Sequence[Table] = list(self._schema.tables.values())
        else:
            tables = [self._schema.table(query.table_id)]
        for table in tables:
            yield from self._read_table(table, query)

    def _read_table(
        self, table: Table, query: p4runtime_pb2.TableEntry
    ) -> Iterator[p4runtime_pb2.TableEntry]:
        self._extras.check_query(table, query)
        for entry in self._selected(table, query):
            if self._passes(entry, query):
                yield self._message(table, entry, query)

    def _selected(self, table: Table, query: p4runtime_pb2.TableEntry) -> Iterator[Entry]:
        if query.is_default_action:
            self._check_default_key(table, query)
            yield self._default(table)
            return
        entries = self._contents[table.id].entries
        if not len(query.match):
            yield from (e for e in entries.values() if query.priority in (0, e.priority))
            return
        key = decode_key(table, query.match)
        if query.priority or not table.needs_priority:
            found = entries.get((key, query.priority))
            if found is not None:
                yield found
        else:
            yield from (entry for entry in entries.values() if entry.key == key)

    @staticmethod
    def _passes(entry: Entry, query: p4runtime_pb2.TableEntry) -> bool:
        wanted = query.action.action.action_id
        if wanted and (entry.action is None or entry.action.id != wanted):
            return False
        if query.controller_metadata and query.controller_metadata != entry.controller_metadata:
            return False
        return not query.metadata or query.metadata == entry.metadata

    def _message(
        self, table: Table, entry: Entry, query: p4runtime_pb2.TableEntry
    ) -> p4runtime_pb2.TableEntry:
        message = p4runtime_pb2.TableEntry(
            table_id=table.id,
            match=encode_key(table, entry.key),
            priority=entry.priority,
            is_default_action=entry.handle is None,
            is_const=entry.is_const
            or (entry.handle is None and (table.const_default or table.action_profile > 0)),
            controller_metadata=entry.controller_metadata,
            metadata=entry.metadata,
        )
        if entry.action is not None:
            message.action.CopyFrom(encode_action(entry.action, entry.arguments))
        if entry.target is not None:
            message.action.CopyFrom(entry.target.message)
        if query.HasField("counter_data") and table.direct_counter:
            message.counter_data.CopyFrom(self._counter(table, entry))
        self._extras.read(table, entry, query, message)
        return message

    def _counter(self, table: Table, entry: Entry) -> p4runtime_pb2.CounterData:
        packets, octets = self._pipeline.direct_counter(table.name, entry.handle)
        return p4runtime_pb2.CounterData(packet_count=packets, byte_count=octets)

    # -- direct counters -----------------------------------------------------------------------

    def write_direct_counter(self, kind: int, message: p4runtime_pb2.DirectCounterEntry) -> None:
        """Sets the counter of an entry (spec, "DirectCounterEntry"): MODIFY only."""
        table, entry = self._counted(message)
        check_modifies(kind, table.name, "direct counter")
        if message.HasField("data"):
            self._check_counter(table, message.data)
            self._set_counter(table, entry, message.data)

    def read_direct_counter(
        self, query: p4runtime_pb2.DirectCounterEntry
    ) -> Iterator[p4runtime_pb2.DirectCounterEntry]:
        """Yields the counters of one entry, of all entries of a table, or (table_id 0) of all
        tables."""
        asked = query.table_entry
        if len(asked.match) or asked.is_default_action:
            yield self._counter_message(*self._counted(query))
            return
        for table in self._schema.tables_with("counter", asked.table_id):
            for entry in self.entries(table):
                yield self._counter_message(table, entry)

    def _counted(self, message: p4runtime_pb2.DirectCounterEntry) -> tuple[Table, Entry]:
        if not message.HasField("table_entry"):
            raise invalid_argument("DirectCounterEntry.table_entry is not set")
        asked = message.table_entry
        table = self._schema.table(asked.table_id)
        if not table.direct_counter:
            raise invalid_argument(f"{table.name} has no direct counter")
        if asked.is_default_action:
            self._check_default_key(table, asked)
            return table, self._default(table)
        return table, self.existing(table, asked)

    def _counter_message(self, table: Table, entry: Entry) -> p4runtime_pb2.DirectCounterEntry:
        return p4runtime_pb2.DirectCounterEntry(
            table_entry=key_of(table, entry), data=self._counter(table, entry)
        )


def key_of(table: Table, entry: Entry) -> p4runtime_pb2.TableEntry:
    """Returns what identifies an entry within its table."""
    return p4runtime_pb2.TableEntry(
        table_id=table.id,
        match=encode_key(table, entry.key),
        priority=entry.priority,
        is_default_action=entry.handle is None,
    )


def check_counter_data(name: str, data: p4runtime_pb2.CounterData) -> None:
    """Raises INVALID_ARGUMENT for negative counts."""
    if data.packet_count < 0 or data.byte_count < 0:
        raise invalid_argument(f"{name}: a count is negative")
