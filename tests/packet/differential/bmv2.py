# SPDX-License-Identifier: Apache-2.0
"""Gets BMv2's answer to a case through capture files (--use-files), without interfaces and root.

Every port reads a pipe. BMv2 takes the earliest packet of those that wait, one for each port, and
then waits until that port has another one (or its pipe ends): so what it gets next decides when it
goes on, and packets go one at a time, whatever the port.
"""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from controller.p4rt.connection import GrpcClient, GrpcConnection, SwitchError
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from testbed import targets
from tests.packet.differential.case import (
    DEVICE,
    PORTS,
    Answer,
    Case,
    Output,
    by_port,
    read_counters,
)
from tests.packet.thrift import add_to_value_set, free_port, registers

BMV2 = targets.bmv2()
_PCAP_HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
_POLL = 0.0005  # seconds between looks at capture files
_STARTS = 30.0
_LATE = 10.0  # seconds to wait for a packet that this target sent
_SILENT, _GOES_ROUND = 0.003, 0.15  # for a packet of which nothing comes, perhaps after rounds
_END = 0.3


class _Listener(GrpcClient):
    """A client that keeps the digests that come."""

    def __init__(self, *arguments) -> None:
        self.digests: SimpleQueue[p4rt.DigestList] = SimpleQueue()
        super().__init__(*arguments)

    def notice(self, message) -> None:
        if message.HasField("digest"):
            self.digests.put(message.digest)


class _Connection(GrpcConnection):
    client = _Listener


class Bmv2:
    """A process with a case's program and entries. Call `answer` once."""

    def __init__(self, case: Case, late: float = _LATE) -> None:
        """late: seconds to wait for a packet that this target sends."""
        self.case = case
        self._late = late
        self._stack = ExitStack()
        self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bm")))
        self._pipes: dict[int, int] = {}
        self._waiting: dict[int, deque[int]] = {port: deque() for port in PORTS}
        for i, (port, _) in enumerate(case.arrivals):
            self._waiting[port].append(i)
        self._read = {port: len(_PCAP_HEADER) for port in PORTS}
        try:
            try:
                self._start("first")
            except SwitchError:  # on a busy machine one of hundreds never listens
                self._end()
                while self._pipes:
                    os.close(self._pipes.popitem()[1])
                self._start("second")
            self.connection.push(self.case.p4info.message, self.case.program)
            self.write(self.case.updates)
        except BaseException:
            self.close()
            raise

    def _start(self, name: str) -> None:
        directory, words = self._directory / name, []
        directory.mkdir()
        self._files = directory
        for port in PORTS:
            pipe = directory / f"p{port}_in.pcap"
            os.mkfifo(pipe)
            self._pipes[port] = os.open(pipe, os.O_RDWR)  # does not wait for the reader
            os.write(self._pipes[port], _PCAP_HEADER)
            words += ["-i", f"{port}@p{port}"]
        self._thrift = free_port()
        log = self._stack.enter_context((self._directory / "log").open("ab"))
        self._process = subprocess.Popen(
            [str(BMV2), "--use-files", "0", "-L", "off", "--no-p4", "--device-id", str(DEVICE),
             "--thrift-port", str(self._thrift), *words,
             "--", "--grpc-server-addr", f"unix:{directory}/grpc",
             "--priority-queues", str(self.case.queues)],
            cwd=directory, stdout=log, stderr=log,
        )  # fmt: skip
        self._stack.callback(self._end)
        self.connection = _Connection("BMv2", f"unix:{directory}/grpc", DEVICE)
        self.connection.open(_STARTS)
        self._stack.callback(self.connection.close)

    def write(self, updates: Sequence[p4rt.Update]) -> None:
        """Applies updates. SwitchError if some are refused."""
        sets = [one for one in updates if one.entity.HasField("value_set_entry")]
        if others := [one for one in updates if one not in sets]:
            self.connection.write(others)
        for update in sets:
            self._fill(update.entity.value_set_entry)

    @property
    def ended(self) -> bool:
        """Tells whether the process has exited."""
        return self._process.poll() is not None

    def ends(self, seconds: float = 2.0) -> bool:
        """Waits for the process to end, which may take longer than its connections to break."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.ended

    @property
    def log(self) -> str:
        """Returns the end of its log."""
        return (self._directory / "log").read_text(errors="replace")[-2000:]

    def _fill(self, entry: p4rt.ValueSetEntry) -> None:
        """BMv2 has value sets, with whole values, but not over P4Runtime."""
        [declared] = [
            one
            for one in self.case.p4info.message.value_sets
            if one.preamble.id == entry.value_set_id
        ]
        for member in entry.members:
            bits = total = 0
            for field in declared.match:
                [given] = [one for one in member.match if one.field_id == field.id]
                value = given.exact.value or given.ternary.value
                bits = bits << field.bitwidth | int.from_bytes(value, "big")
                total += field.bitwidth
            data = bits.to_bytes((total + 7) // 8, "big")
            add_to_value_set(self._thrift, declared.preamble.name, data)

    def _end(self) -> None:
        self._process.kill()  # it would wait for its pipes
        self._process.wait()

    def close(self) -> None:
        for pipe in self._pipes.values():
            os.close(pipe)
        self._pipes.clear()
        self._stack.close()

    def answer(self, expected: list[Output]) -> Answer:
        """Returns the outputs of each arrival. `expected`, this target's, only sets wait times."""
        answer = Answer()
        first = self.case.arrivals[0][0]
        for port in PORTS:
            if port != first:
                self._give(port)
        last = first
        for wanted in expected:
            self._give(last)
            answer.outputs.append(by_port(self._outputs(len(wanted))))
            last = self.case.arrivals[len(answer.outputs) - 1][0]
        self._linger(answer)
        read_counters(self.case, self.connection, answer)
        for name in self.case.registers:
            answer.registers[name] = registers(self._thrift, name)
        if self.case.learns:
            self._learn(answer)
        return answer

    def _learn(self, answer: Answer) -> None:
        """Collects the digests received."""
        client = self.connection._client
        assert isinstance(client, _Listener)
        with suppress(Empty):
            while True:
                answer.learn(self.case, client.digests.get(timeout=_END))

    def _give(self, port: int) -> None:
        """Gives BMv2 the next packet of a port, or the end of its input."""
        if self._waiting[port]:
            i = self._waiting[port].popleft()
            frame = self.case.arrivals[i][1]
            os.write(self._pipes[port], struct.pack("<IIII", i, 0, len(frame), len(frame)) + frame)
        elif port in self._pipes:
            os.close(self._pipes.pop(port))

    def _outputs(self, wanted: int) -> Output:
        silence = _GOES_ROUND if self.case.races else _SILENT
        deadline = time.monotonic() + (self._late if wanted else silence)
        found: Output = []
        while True:
            for port in PORTS:
                found += [(port, frame) for frame in self._fresh(port)]
            if (wanted and len(found) >= wanted) or time.monotonic() > deadline:
                return found
            if self.ended:
                raise RuntimeError(f"{self.case.name}: BMv2 ended: {self.log}")
            time.sleep(_POLL)

    def _linger(self, answer: Answer) -> None:
        """Attributes unexpected outputs to the last packet."""
        until = time.monotonic() + _END
        while time.monotonic() < until:
            late = self._outputs(0)
            answer.outputs[-1] = by_port(answer.outputs[-1] + late)

    def _fresh(self, port: int) -> list[bytes]:
        """Returns the packets a port has sent since the last call."""
        path = self._files / f"p{port}_out.pcap"
        if not path.exists() or path.stat().st_size <= self._read[port]:
            return []
        with path.open("rb") as file:
            file.seek(self._read[port])
            data = file.read()
        frames, at = [], 0
        while at + 16 <= len(data):
            length = struct.unpack_from("<I", data, at + 8)[0]
            if at + 16 + length > len(data):
                break
            frames.append(data[at + 16 : at + 16 + length])
            at += 16 + length
        self._read[port] += at
        return frames


def bmv2(case: Case, expected: list[Output]) -> Answer:
    """Returns BMv2's answer. Raises RuntimeError with its log if it exits."""
    target = Bmv2(case)
    try:
        return target.answer(expected)
    finally:
        target.close()


def version() -> str:
    """Returns the version of the installed BMv2."""
    done = subprocess.run([str(BMV2), "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip()
