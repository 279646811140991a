# SPDX-License-Identifier: Apache-2.0
"""Indexed and direct meters (P4Runtime spec, "MeterEntry & DirectMeterEntry")."""

from __future__ import annotations

from collections.abc import Iterator

from switch.p4runtime.entities.checks import check_modifies
from switch.p4runtime.entities.counters_registers import indices
from switch.p4runtime.entities.direct_resources import Extras, config_of, rates_of, refuse_colors
from switch.p4runtime.entities.entry import Entry
from switch.p4runtime.entities.tables import Tables, key_of
from switch.p4runtime.errors import invalid_argument
from switch.p4runtime.p4info.schema import Schema, Table
from switch.p4runtime.stubs import p4runtime_pb2
from switch.pipeline.meters_and_digests import Externs


class Meters:
    """Indexed meters of one program."""

    def __init__(self, schema: Schema, externs: Externs) -> None:
        self._schema = schema
        self._externs = externs

    def write(self, kind: int, message: p4runtime_pb2.MeterEntry) -> None:
        """Sets meters. MODIFY only; without config the meter is green for all, without index all
        are set."""
        meter = self._schema.meter(message.meter_id)
        check_modifies(kind, meter.name, "meter")
        refuse_colors(meter.name, message)
        asked = indices(meter, message)
        rates = None
        if message.HasField("config"):
            rates = rates_of(meter.name, meter.kind, message.config)
        for index in asked:
            self._externs.set_meter(meter.name, index, rates)

    def read(self, query: p4runtime_pb2.MeterEntry) -> Iterator[p4runtime_pb2.MeterEntry]:
        """Yields one meter, all of an array, or (meter_id 0) all; config is unset for meters
        without rates."""
        if query.meter_id == 0:
            meters = list(self._schema.meters.values())
        else:
            meters = [self._schema.meter(query.meter_id)]
        for meter in meters:
            refuse_colors(meter.name, query)
            for index in indices(meter, query):
                found = p4runtime_pb2.MeterEntry(meter_id=meter.id)
                found.index.index = index
                rates = self._externs.meter(meter.name, index)
                if rates is not None:
                    found.config.CopyFrom(config_of(rates))
                yield found


class DirectMeters:
    """Direct meters of one program."""

    def __init__(self, schema: Schema, tables: Tables, extras: Extras) -> None:
        self._schema = schema
        self._tables = tables
        self._extras = extras

    def write(self, kind: int, message: p4runtime_pb2.DirectMeterEntry) -> None:
        """Sets an entry's meter. MODIFY only; without config the meter is green for all."""
        if not message.HasField("table_entry"):
            raise invalid_argument("DirectMeterEntry.table_entry is not set")
        table, entry = self._metered(message.table_entry)
        check_modifies(kind, table.name, "direct meter")
        refuse_colors(table.name, message)
        self._extras.set_meter(table, entry, message, "config")

    def read(
        self, query: p4runtime_pb2.DirectMeterEntry
    ) -> Iterator[p4runtime_pb2.DirectMeterEntry]:
        """Yields the meters of one entry, of all entries of a table, or (table_id 0) of all
        tables."""
        refuse_colors("direct meters", query)
        asked = query.table_entry
        if len(asked.match) or asked.is_default_action:
            yield self._message(*self._metered(asked))
            return
        for table in self._schema.tables_with("meter", asked.table_id):
            for entry in self._tables.entries(table):
                yield self._message(table, entry)

    def _metered(self, asked: p4runtime_pb2.TableEntry) -> tuple[Table, Entry]:
        table = self._schema.table(asked.table_id)
        self._extras.metered(table, bool(asked.is_default_action))
        return table, self._tables.existing(table, asked)

    def _message(self, table: Table, entry: Entry) -> p4runtime_pb2.DirectMeterEntry:
        message = p4runtime_pb2.DirectMeterEntry(table_entry=key_of(table, entry))
        config = self._extras.meter(table, entry)
        if config is not None:
            message.config.CopyFrom(config)
        return message
