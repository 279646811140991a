# SPDX-License-Identifier: Apache-2.0
"""Runs one P4 program in process: its compiled library, its state, and packets through it.

    pipeline = Pipeline(load_program("program.json"))
    pipeline.insert("Ingress.routes", [(0x0A000000, 8)], "Ingress.forward", [3, 0x020000000001])
    pipeline.inject(1, frame)       # -> [(3, frame as it leaves)]

Every method may be called from any thread, also while ports run on the same switch: one lock in the
C runtime serializes them, and ctypes releases the interpreter lock meanwhile.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from switch.codegen import cached_source
from switch.codegen.layout import Layout, limbs, words_of
from switch.compiler import FLAGS, TRACED, build_program, declare
from switch.pipeline import abi
from switch.pipeline.errors import (
    EntryExists,
    EntryIsConstant,
    EntryNotFound,
    PipelineError,
    TableFull,
)
from switch.pipeline.keys import (
    KeyElement,
    PackedKey,
    Reference,
    c_words,
    check_range,
    pack_arguments,
    pack_key,
    position,
)
from switch.program.errors import consistent
from switch.program.model import Action, Counter, Meter, Program, Register, Table

# Limits of one call of inject: bytes returned, packets returned.
_OUTPUT_BYTES = 1 << 24
_OUTPUT_PACKETS = 1 << 16
_NO_ACTION = 0xFFFFFFFF


class Pipeline:
    """A program with state of its own; two pipelines of one program share only code.

    native      the loaded shared library (its functions are those of runtime/target.h)
    handle      the `struct sw *` to pass to them, valid until close()
    pool        how many packets may exist at once
    started_ns  CLOCK_MONOTONIC at the start, from which its time and that of its ports counts

    Names of tables, actions, counters and registers are the full names of the JSON and p4info.
    Unknown names raise a KeyError that lists the known ones, values that do not fit ValueError.
    """

    program: Program
    native: ctypes.CDLL
    handle: ctypes.c_void_p

    def __init__(
        self,
        program: Program,
        pool: int = 8192,
        flags: Sequence[str] = FLAGS,
        clock: Callable[[], int] | None = None,
        traced: bool = False,
        priority_queues: int = 1,
    ) -> None:
        """Compiles the program unless it is cached, and starts it.

        pool: packets that may exist at once
        flags: for the C compiler (a sanitizer's, say)
        clock: now_us of a program without ports
        traced: enables set_trace, which costs most of the speed
        priority_queues: queues per port, 1 to 8; packets with a priority beyond are dropped

        Raises ProgramError, UnsupportedConstruct, switch.compiler.CompilerError, MemoryError,
        ValueError.
        """
        self.program = program
        source = _source(program, traced)
        flags = (*flags, *TRACED) if traced else flags
        self.layout = _layout(program)
        library = ctypes.CDLL(str(build_program(source, tuple(flags))))
        self.native = declare(library, abi.FUNCTIONS)
        handle = self.native.sw_create(pool)
        if not handle:
            raise MemoryError(f"no memory for a switch with {pool} packets of {program.name}")
        self.handle = ctypes.c_void_p(handle)
        if self.native.sw_set_priority_queues(handle, priority_queues):
            self.close()
            raise ValueError(f"{priority_queues} priority queues: a port has 1 to 8")
        self.pool = pool
        self.started_ns = time.monotonic_ns()
        self._initial: dict[str, tuple[int, ...]] = {}
        self._clock = clock
        self._log: Any = None
        self._trace: Any = None
        self._outputs: Any = None
        self._output_bytes: Any = None
        self._injecting = threading.Lock()  # guards the output buffers
        self._tables = program.tables
        try:
            with consistent(program.name):
                for table in self._tables.values():
                    self._initial[table.name] = tuple(self._insert_declared(table))
        except BaseException:
            self.close()
            raise

    def _insert_declared(self, table: Table) -> Iterator[int]:
        for entry in table.entries:
            packed = pack_key(table, self.layout.tables[table.name], entry.key)
            priority = entry.priority if table.takes_priority else packed.prefix
            chosen = self._chosen(table, self.program.actions[entry.action_id], entry.args)
            yield self._insert(table, packed, chosen, priority)

    def initial_entries(self, table: str) -> tuple[int, ...]:
        """Handles of the entries that the program declares, in its order."""
        return self._initial[self._table(table).name]

    def close(self) -> None:
        """Frees the switch, which must not be in use any more. Idempotent."""
        if self.handle:
            self.native.sw_destroy(self.handle)
            self.handle = ctypes.c_void_p(None)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def functions(self) -> int:
        """The address of the library's sw_functions, for drivers."""
        return ctypes.addressof(ctypes.c_char.in_dll(self.native, "sw_functions"))

    def now_us(self) -> int:
        """Returns microseconds since the switch started, the clock of inject and of the ports."""
        if self._clock is not None:
            return self._clock()
        return (time.monotonic_ns() - self.started_ns) // 1000

    # Tables. Priorities are P4Runtime's: the highest wins; only tables with ternary, range or
    # optional fields take them.

    def insert(
        self,
        table: str,
        key: Sequence[KeyElement],
        action: str | Reference,
        args: Sequence[int] = (),
        priority: int = 0,
    ) -> int:
        """Adds an entry; returns its handle.

        action: a Reference, without args, if the table has an action profile (action_profiles.py).
        Raises EntryExists, TableFull, EntryIsConstant.
        """
        one = self._table(table)
        if one.entries_are_const:
            raise EntryIsConstant(f"table '{table}' has const entries: nothing can be added")
        packed = pack_key(one, self.layout.tables[table], key)
        chosen = self._chosen(one, action, args)
        if not one.takes_priority:
            priority = packed.prefix
        elif not 0 <= priority < 1 << 31:
            raise ValueError(f"table '{table}': priority {priority} is not in 0 .. 2^31 - 1")
        return self._insert(one, packed, chosen, priority)

    def _chosen(
        self, table: Table, action: str | Reference | Action, args: Sequence[int]
    ) -> tuple[int, list[int]]:
        """Returns the number and the argument words of an entry's action."""
        if isinstance(action, Reference) or table.profile is not None:
            if not isinstance(action, Reference) or table.profile is None or args:
                has = "an action profile" if table.profile else "no action profile"
                raise ValueError(f"table '{table.name}' has {has}: it cannot take {action}")
            check_range(f"table '{table.name}': the number of a member", action.number, 24)
            return int(action.group), [action.number]
        if isinstance(action, str):
            action = self.program.action_named(table.name, action)
        words = self.layout.tables[table.name].arg_words
        return action.id, pack_arguments(action, words, args)

    def _insert(
        self, table: Table, key: PackedKey, chosen: tuple[int, list[int]], priority: int
    ) -> int:
        result: int = self.native.sw_table_insert(
            self.handle,
            self.layout.table_index[table.name],
            c_words(key.value),
            c_words(key.mask),
            c_words(key.low),
            c_words(key.high),
            priority,
            chosen[0],
            c_words(chosen[1]),
        )
        if result == abi.EXISTS:
            raise EntryExists(f"table '{table.name}' already has an entry with this key")
        if result == abi.FULL:
            raise TableFull(f"table '{table.name}' is full: size = {table.max_size}")
        if result < 0:
            raise MemoryError(f"no memory for an entry of table '{table.name}'")
        return result

    def modify(
        self, table: str, handle: int, action: str | Reference, args: Sequence[int] = ()
    ) -> None:
        """Gives an entry another action. Raises EntryNotFound, EntryIsConstant."""
        one = self._table(table)
        number, words = self._chosen(one, action, args)
        self._writable(one)
        index = self.layout.table_index[table]
        result = self.native.sw_table_modify(self.handle, index, handle, number, c_words(words))
        self.found(result, table, handle)

    def delete(self, table: str, handle: int) -> None:
        """Deletes an entry and its counter. Raises EntryNotFound, EntryIsConstant."""
        self._writable(self._table(table))
        result = self.native.sw_table_delete(self.handle, self.layout.table_index[table], handle)
        self.found(result, table, handle)

    def set_default(
        self, table: str, action: str | Reference | None, args: Sequence[int] = ()
    ) -> None:
        """Sets the default action; None: the program's own. Raises EntryIsConstant."""
        one = self._table(table)
        if action is None:
            if one.default_action_id is None:
                number, words = _NO_ACTION, [0] * self.layout.tables[table].arg_words
            else:
                own = self.program.actions[one.default_action_id]
                number, words = self._chosen(one, own, one.default_args)
        else:
            if one.default_is_const:
                raise EntryIsConstant(f"table '{table}' has a const default action")
            number, words = self._chosen(one, action, args)
        index = self.layout.table_index[table]
        self.native.sw_table_set_default(self.handle, index, number, c_words(words))

    # Counters are (packets, bytes). Handle None: the direct counter of the default entry.

    def counter(self, name: str, index: int) -> tuple[int, int]:
        """Returns an indexed counter's (packets, bytes). Raises IndexError."""
        packets, octets = ctypes.c_uint64(), ctypes.c_uint64()
        which = position(self.layout.counter_index, name, "counter")
        result = self.native.sw_counter_read(self.handle, which, index, packets, octets)
        self.in_range(result, "counter", name, index, self.program.counters)
        return packets.value, octets.value

    def set_counter(self, name: str, index: int, packets: int, byte_count: int) -> None:
        """Sets an indexed counter. Raises IndexError."""
        which = position(self.layout.counter_index, name, "counter")
        result = self.native.sw_counter_write(self.handle, which, index, packets, byte_count)
        self.in_range(result, "counter", name, index, self.program.counters)

    def direct_counter(self, table: str, handle: int | None) -> tuple[int, int]:
        """Returns the (packets, bytes) that hit an entry. Raises EntryNotFound, PipelineError (no
        counter)."""
        packets, octets = ctypes.c_uint64(), ctypes.c_uint64()
        result = self.native.sw_table_counter(
            self.handle,
            self._counted(table),
            -1 if handle is None else handle,
            packets,
            octets,
        )
        self.found(result, table, handle)
        return packets.value, octets.value

    def set_direct_counter(
        self, table: str, handle: int | None, packets: int, byte_count: int
    ) -> None:
        """Sets an entry's counter. Raises EntryNotFound, PipelineError (no counter)."""
        result = self.native.sw_table_set_counter(
            self.handle, self._counted(table), -1 if handle is None else handle, packets, byte_count
        )
        self.found(result, table, handle)

    def register(self, name: str, index: int) -> int:
        """Returns a register cell as an unsigned integer. Raises IndexError."""
        which = position(self.layout.register_index, name, "register")
        one = self.program.registers[name]
        words = (ctypes.c_uint64 * limbs(one.width))()
        result = self.native.sw_register_read(self.handle, which, index, words)
        self.in_range(result, "register", name, index, self.program.registers)
        return sum(word << (64 * i) for i, word in enumerate(words))

    def set_register(self, name: str, index: int, value: int) -> None:
        """Sets a register cell. Raises IndexError, ValueError."""
        which = position(self.layout.register_index, name, "register")
        one = self.program.registers[name]
        check_range(f"register '{name}'", value, one.width)
        words = c_words(words_of(value, limbs(one.width)))
        result = self.native.sw_register_write(self.handle, which, index, words)
        self.in_range(result, "register", name, index, self.program.registers)

    # Replication. Setting an existing group or session replaces it.

    def set_multicast_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Sets a group's replicas: (egress port, instance), sent in this order. Raises ValueError
        (id not in 1..65535)."""
        result = self.native.sw_group_set(self.handle, group, _replicas(replicas), len(replicas))
        self.raise_for(result, f"multicast group {group}")

    def delete_multicast_group(self, group: int) -> None:
        result = self.native.sw_group_delete(self.handle, group)
        self.raise_for(result, f"multicast group {group}")

    def set_clone_session(
        self,
        session: int,
        replicas: Sequence[tuple[int, int]],
        truncate: int = 0,
        priority: int = 0,
    ) -> None:
        """Sets a clone session. truncate: bytes of a clone that are sent, 0 = all. Raises
        ValueError (id not in 0..32767)."""
        result = self.native.sw_session_set(
            self.handle, session, _replicas(replicas), len(replicas), truncate, priority
        )
        self.raise_for(result, f"clone session {session}")

    def delete_clone_session(self, session: int) -> None:
        result = self.native.sw_session_delete(self.handle, session)
        self.raise_for(result, f"clone session {session}")

    # Packets, in process (no ports, no queues)

    def inject(self, port: int, frame: bytes, now_us: int | None = None) -> list[tuple[int, bytes]]:
        """Runs one frame through the switch; returns the (port, frame) of all that leaves, in
        order.

        now_us: microseconds since the switch started, None = the clock. Raises PipelineError if the
        packet recirculates endlessly.
        """
        return self.inject_batch([port], [frame], now_us)

    def inject_batch(
        self, ports: Sequence[int], frames: Sequence[bytes], now_us: int | None = None
    ) -> list[tuple[int, bytes]]:
        """Runs frames that arrive back to back; recirculated packets queue behind all of them."""
        if len(ports) != len(frames):
            raise ValueError(f"{len(ports)} ports for {len(frames)} frames")
        with self._injecting:
            return self._inject(ports, frames, now_us)

    def _inject(
        self, ports: Sequence[int], frames: Sequence[bytes], now_us: int | None
    ) -> list[tuple[int, bytes]]:
        count = len(frames)
        if self._outputs is None:
            self._outputs = (abi.Output * _OUTPUT_PACKETS)()
            self._output_bytes = (ctypes.c_uint8 * _OUTPUT_BYTES)()
        offsets, total = (ctypes.c_uint64 * count)(), 0
        for i, frame in enumerate(frames):
            offsets[i] = total
            total += len(frame)
        produced = ctypes.c_size_t()
        result = self.native.sw_inject(
            self.handle,
            count,
            (ctypes.c_uint32 * count)(*ports),
            b"".join(frames),
            offsets,
            (ctypes.c_uint32 * count)(*map(len, frames)),
            self.now_us() if now_us is None else now_us,
            self._outputs,
            _OUTPUT_PACKETS,
            self._output_bytes,
            _OUTPUT_BYTES,
            produced,
        )
        if result == abi.FULL:
            raise PipelineError(
                f"more than {_OUTPUT_PACKETS} packets or {_OUTPUT_BYTES} bytes came out of "
                f"{count} frames; inject fewer at once"
            )
        if result == abi.RANGE:
            raise PipelineError("a packet was recirculated or resubmitted more than 65536 times")
        view = memoryview(self._output_bytes).cast("B")
        return [
            (one.port, bytes(view[one.offset : one.offset + one.length]))
            for one in self._outputs[: produced.value]
        ]

    def stats(self) -> dict[str, int]:
        """Returns counts since the start: the fields of struct sw_stats (runtime/target.h)."""
        stats = abi.Stats()
        self.native.sw_get_stats(self.handle, stats)
        return {name: getattr(stats, name) for name, *_ in abi.Stats._fields_}

    def set_log(self, receive: Callable[[str], None] | None) -> None:
        """Sets the receiver of the program's log_msg() and failed assertions. It is called under
        the switch's lock."""
        function = _receiver(receive)
        self.native.sw_set_log(self.handle, function, None)
        self._log = function  # keeps it alive: the library has only its address

    def set_trace(self, receive: Callable[[str], None] | None) -> None:
        """Sets the receiver of each packet's trace, line by line. It is called under the switch's
        lock. Raises PipelineError if the pipeline is not traced."""
        function = _receiver(receive)
        self._traces(self.native.sw_set_trace(self.handle, function, None))
        self._trace = function

    def trace_to(self, descriptor: int) -> None:
        """Writes traces to a file as lines of a log, with the time: much faster than set_trace."""
        self._traces(self.native.sw_trace_to(self.handle, descriptor))

    def _traces(self, result: int) -> None:
        if result == abi.NOT_FOUND:
            raise PipelineError(f"{self.program.name} is not compiled for tracing")
        self.raise_for(result, "trace")

    # Checks

    def _table(self, name: str) -> Table:
        # Tables that p4c wraps around plain statements have neither a key nor a choice of action.
        own = {one.name: 0 for one in self._tables.values() if one.key or not one.default_is_const}
        if name not in self._tables:
            position(own, name, "table")
        return self._tables[name]

    def _counted(self, table: str) -> int:
        if not self._table(table).with_counters:
            raise PipelineError(f"table '{table}' has no direct counter")
        return self.layout.table_index[table]

    @staticmethod
    def _writable(table: Table) -> None:
        if table.entries_are_const:
            raise EntryIsConstant(f"table '{table.name}' has const entries")

    @staticmethod
    def found(result: int, table: str, handle: int | None) -> None:
        """Raises EntryNotFound for the result of a call with a handle that is not valid."""
        if result == abi.NOT_FOUND:
            raise EntryNotFound(f"table '{table}' has no entry with handle {handle}")

    @staticmethod
    def in_range(
        result: int,
        kind: str,
        name: str,
        index: int,
        arrays: Mapping[str, Counter | Register | Meter],
    ) -> None:
        """Raises IndexError for the result of a call with an index beyond an array."""
        if result == abi.RANGE:
            last = arrays[name].size - 1
            raise IndexError(f"{kind} '{name}' has cells 0 .. {last}, not {index}")

    @staticmethod
    def raise_for(result: int, what: str) -> None:
        """Raises the error that a result of the library stands for."""
        if result == abi.NOT_FOUND:
            raise EntryNotFound(f"no {what}")
        if result == abi.RANGE:
            raise ValueError(f"{what}: the number (or its priority) is out of range")
        if result == abi.NO_MEMORY:
            raise MemoryError(f"no memory for {what}")


@lru_cache(maxsize=8)
def _layout(program: Program) -> Layout:
    """Returns a program's layout, computed once for all switches that run it."""
    return Layout(program)


@lru_cache(maxsize=8)
def _source(program: Program, traced: bool) -> str:
    """Returns a program's C source, read once for all switches that run it."""
    return cached_source(program.digest, lambda: program, traced)


def _receiver(receive: Callable[[str], None] | None) -> Any:
    """Wraps a receiver of lines for the C library."""
    if receive is None:
        return abi.LOG_FUNCTION()
    return abi.LOG_FUNCTION(lambda _, text: receive(text.decode(errors="replace")))


def _replicas(replicas: Sequence[tuple[int, int]]) -> Any:
    for port, instance in replicas:
        check_range("a replica's port", port, 9)
        check_range("a replica's instance", instance, 16)
    return (abi.Replica * max(len(replicas), 1))(*(abi.Replica(*one) for one in replicas))
