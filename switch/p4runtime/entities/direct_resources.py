# SPDX-License-Identifier: Apache-2.0
"""Direct meters and idle timeouts of table entries (P4Runtime spec, "Direct Resources" and
"Idle-timeout")."""

from __future__ import annotations

from google.protobuf.message import Message

from switch.p4runtime.entities.entry import Entry
from switch.p4runtime.entities.idle_timeouts import Ageing
from switch.p4runtime.errors import invalid_argument, unimplemented
from switch.p4runtime.p4info.schema import Schema, Table
from switch.p4runtime.stubs import p4info_pb2, p4runtime_pb2
from switch.pipeline.meters_and_digests import Externs, Rates

Spec = p4info_pb2.MeterSpec


def rates_of(name: str, kind: int, config: p4runtime_pb2.MeterConfig) -> Rates:
    """Returns the rates of a MeterConfig for a meter of this MeterSpec.Type.

    Raises INVALID_ARGUMENT for what the type or RFC 2698 rules out.
    """
    rates = Rates(config.cir, config.cburst, config.pir, config.pburst)
    for field, value in [*rates._asdict().items(), ("eburst", config.eburst)]:
        if value < 0:
            raise invalid_argument(f"{name}: {field} {value} is negative")
    if config.eburst:
        raise invalid_argument(f"{name}: eburst is for single rate three color meters only")
    if kind == Spec.SINGLE_RATE_TWO_COLOR and rates[:2] != rates[2:]:
        raise invalid_argument(f"{name} has one rate: pir and pburst must be cir and cburst")
    if rates.cir > rates.pir:
        raise invalid_argument(f"{name}: cir {rates.cir} is above pir {rates.pir} (RFC 2698)")
    return rates


def config_of(rates: Rates) -> p4runtime_pb2.MeterConfig:
    """Returns the MeterConfig of rates."""
    return p4runtime_pb2.MeterConfig(**rates._asdict())


def refuse_colors(name: str, message: Message, field: str = "counter_data") -> None:
    """Raises UNIMPLEMENTED if counters per color are requested."""
    if message.HasField(field):
        raise unimplemented(f"{name}: this target does not count packets by color ({field})")


class Extras:
    """Meters and idle timeouts of the entries of one program."""

    def __init__(self, schema: Schema, externs: Externs, ageing: Ageing) -> None:
        self._schema = schema
        self._externs = externs
        self._ageing = ageing

    def check(self, table: Table, message: p4runtime_pb2.TableEntry) -> None:
        """Raises the error for which a TableEntry must not be inserted or modified."""
        default = bool(message.is_default_action)
        if message.idle_timeout_ns < 0:
            raise invalid_argument(f"{table.name}: idle_timeout_ns is negative")
        if message.idle_timeout_ns and (default or not table.ages):
            what = "the default entry" if default else "this table"
            raise invalid_argument(f"{table.name}: {what} has no idle timeout")
        if message.HasField("time_since_last_hit"):
            raise invalid_argument(f"{table.name}: time_since_last_hit can only be read")
        if message.HasField("meter_config") or message.HasField("meter_counter_data"):
            self.metered(table, default)
            refuse_colors(table.name, message, "meter_counter_data")
            self._rates(table, message.meter_config)

    def metered(self, table: Table, default: bool) -> None:
        """Raises INVALID_ARGUMENT for a table without direct meter, UNIMPLEMENTED for the default
        entry of one that has: as in BMv2, its meter runs at hits only."""
        if not table.direct_meter:
            raise invalid_argument(f"{table.name} has no direct meter")
        if default:
            raise unimplemented(f"{table.name}: the default entry has no meter, a miss meters none")

    def _rates(self, table: Table, config: p4runtime_pb2.MeterConfig) -> Rates:
        return rates_of(table.name, self._schema.direct_meters[table.direct_meter], config)

    def write(self, table: Table, entry: Entry, message: p4runtime_pb2.TableEntry) -> None:
        """Sets the meter and timeout of an entry that was inserted or modified, after check()."""
        if table.direct_meter:
            self.set_meter(table, entry, message, "meter_config")
        if table.ages:
            entry.idle_timeout_ns = message.idle_timeout_ns
            self._ageing.start(table, entry)

    def set_meter(self, table: Table, entry: Entry, message: Message, field: str) -> None:
        """Sets the meter from a message's MeterConfig; unset: green for all. Raises
        INVALID_ARGUMENT."""
        rates = self._rates(table, getattr(message, field)) if message.HasField(field) else None
        self._externs.set_direct_meter(table.name, entry.pipeline_handle, rates)

    def meter(self, table: Table, entry: Entry) -> p4runtime_pb2.MeterConfig | None:
        """Returns the entry's MeterConfig, None without one."""
        rates = self._externs.direct_meter(table.name, entry.pipeline_handle)
        return None if rates is None else config_of(rates)

    def forget(self, entry: Entry) -> None:
        """Removes the state of a deleted entry."""
        self._ageing.stop(entry)

    def check_query(self, table: Table, query: p4runtime_pb2.TableEntry) -> None:
        """Raises the error for which a query must be refused."""
        if query.HasField("time_since_last_hit") and (query.is_default_action or not table.ages):
            raise invalid_argument(f"{table.name} has no idle timeout to read")
        if query.table_id and query.HasField("meter_counter_data"):
            refuse_colors(table.name, query, "meter_counter_data")

    def read(
        self,
        table: Table,
        entry: Entry,
        query: p4runtime_pb2.TableEntry,
        message: p4runtime_pb2.TableEntry,
    ) -> None:
        """Fills in what the query asks for and the entry has."""
        if entry.handle is None:
            return
        message.idle_timeout_ns = entry.idle_timeout_ns
        if query.HasField("meter_config") and table.direct_meter:
            config = self.meter(table, entry)
            if config is not None:
                message.meter_config.CopyFrom(config)
        if query.HasField("time_since_last_hit"):
            message.time_since_last_hit.elapsed_ns = self._ageing.idle_ns(table, entry)
