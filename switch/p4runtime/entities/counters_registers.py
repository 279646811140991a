# SPDX-License-Identifier: Apache-2.0
"""Indexed counters and registers (P4Runtime spec, "CounterEntry" and "RegisterEntry")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from switch.p4runtime.entities.checks import check_modifies
from switch.p4runtime.entities.tables import check_counter_data
from switch.p4runtime.errors import invalid_argument, out_of_range, unimplemented
from switch.p4runtime.p4info.schema import Counter, Meter, Register, Schema
from switch.p4runtime.stubs import p4runtime_pb2
from switch.pipeline import Pipeline


def indices(item: Counter | Register | Meter, message: Any) -> range:
    """Returns the cells that a message refers to: one, or all if it carries no index.

    Raises INVALID_ARGUMENT for a negative index, OUT_OF_RANGE for one beyond the array.
    """
    if not message.HasField("index"):
        return range(item.size)
    index = message.index.index
    if index < 0:
        raise invalid_argument(f"{item.name}: index {index} is negative")
    if index >= item.size:
        raise out_of_range(f"{item.name}: index {index} is not below its size {item.size}")
    return range(index, index + 1)


class Cells:
    """Counter and register arrays of one program. The pipeline holds all state."""

    def __init__(self, schema: Schema, pipeline: Pipeline) -> None:
        self._schema = schema
        self._pipeline = pipeline

    def write_counter(self, kind: int, message: p4runtime_pb2.CounterEntry) -> None:
        """Sets counter cells. MODIFY only; without data nothing changes, without index every cell
        is set."""
        counter = self._schema.counter(message.counter_id)
        check_modifies(kind, counter.name, "counter")
        asked = indices(counter, message)
        if not message.HasField("data"):
            return
        check_counter_data(counter.name, message.data)
        packets, octets = message.data.packet_count, message.data.byte_count
        for index in asked:
            self._pipeline.set_counter(counter.name, index, packets, octets)

    def read_counter(
        self, query: p4runtime_pb2.CounterEntry
    ) -> Iterator[p4runtime_pb2.CounterEntry]:
        """Yields one cell, all cells of a counter, or (counter_id 0) all cells of all counters."""
        if query.counter_id == 0:
            counters = list(self._schema.counters.values())
        else:
            counters = [self._schema.counter(query.counter_id)]
        for counter in counters:
            for index in indices(counter, query):
                packets, octets = self._pipeline.counter(counter.name, index)
                yield p4runtime_pb2.CounterEntry(
                    counter_id=counter.id,
                    index=p4runtime_pb2.Index(index=index),
                    data=p4runtime_pb2.CounterData(packet_count=packets, byte_count=octets),
                )

    def write_register(self, kind: int, message: p4runtime_pb2.RegisterEntry) -> None:
        """Sets register cells. MODIFY only; without index every cell is set. (BMv2 has no register
        access.)"""
        register = self._schema.register(message.register_id)
        check_modifies(kind, register.name, "register")
        if register.codec is None:
            raise unimplemented(register.reason)
        asked = indices(register, message)
        if not message.HasField("data"):
            raise invalid_argument(f"{register.name}: data is not set")
        value = register.codec.decode(message.data)
        for index in asked:
            self._pipeline.set_register(register.name, index, value)

    def read_register(
        self, query: p4runtime_pb2.RegisterEntry
    ) -> Iterator[p4runtime_pb2.RegisterEntry]:
        """Yields one cell, all cells of a register, or (register_id 0) all cells of all
        registers."""
        if query.register_id == 0:
            registers = [r for r in self._schema.registers.values() if r.codec is not None]
        else:
            registers = [self._schema.register(query.register_id)]
        for register in registers:
            if register.codec is None:
                raise unimplemented(register.reason)
            for index in indices(register, query):
                value = self._pipeline.register(register.name, index)
                yield p4runtime_pb2.RegisterEntry(
                    register_id=register.id,
                    index=p4runtime_pb2.Index(index=index),
                    data=register.codec.encode(value),
                )
