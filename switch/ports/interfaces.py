# SPDX-License-Identifier: Apache-2.0
"""Connects a switch to network interfaces: queues and rates, captures, packet-in and packet-out.

    ports = Ports(pipeline, {1: PortOptions("tor0-eth1", rate=20_000_000)}, cpu_port=255)
    ports.start()
    ports.statistics()[1].tx_bytes
    ports.stop()

One C thread moves all packets (runtime/interfaces/ports.h); this module starts it, configures it
and reads its counters. It is a library of its own, so interfaces, queues and counters outlive the
program: attach() puts another pipeline under running ports.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switch.compiler import RUNTIME, CompilerError, Functions, load_library

if TYPE_CHECKING:
    from switch.pipeline import Pipeline

log = logging.getLogger("switch.ports")

# A joined frame takes at most 1 ms of a link, as it delays the packets behind it.
TRAIN_SECONDS = 0.001
MAX_FRAME = 16384  # SW_MAX_FRAME
NO_PORT = 511  # SW_DROP_PORT
_LONGEST_TRAIN = 65549  # an IPv4 packet of 65,535 bytes in Ethernet
_PLAIN_VARIABLE = "RACKHUB_PLAIN"


class PortsError(Exception):
    """The ports cannot carry out a request; the message gives the port, the reason and the
    remedy."""


class NoSuchInterface(PortsError):  # noqa: N818  (reads as what it says)
    """The interface does not exist in this network namespace."""


class NoPermission(PortsError):  # noqa: N818
    """Raw sockets need CAP_NET_RAW: root, or a user namespace of one's own."""


@dataclass(frozen=True)
class PortOptions:
    """The configuration of a port.

    interface    name of the network interface
    rate         bit/s of frames from the Ethernet header on, without FCS; None: as fast as the
                 interface takes them
    queue_bytes  bytes of packets that may wait for the port; beyond it packets are dropped
    queue_packets
                 packets of one priority that may wait for the port; None: no limit
    rate_in      bit/s of the link that ends at the port, None: frames are processed on arrival. For
                 a sender whose shaper releases a frame when its transmission begins: it is held
                 until its last bit would have arrived
    join         send runs of packets of one TCP or UDP flow as one GSO frame where the system
                 supports it; this changes only a UDP checksum of 0, which becomes the right one
    """

    interface: str
    rate: int | None = None
    queue_bytes: int = 1 << 20
    queue_packets: int | None = None
    rate_in: int | None = None
    join: bool = True

    def __post_init__(self) -> None:
        size = len(os.fsencode(self.interface))
        if not 0 < size < 16 or "/" in self.interface:
            raise ValueError(f"{self.interface!r} is no interface name")
        for rate in (self.rate, self.rate_in):
            if rate is not None and rate <= 0:
                raise ValueError(f"rate of {self.interface}: {rate} bit/s, must be above 0")
        if self.queue_bytes <= 0:
            raise ValueError(f"queue of {self.interface}: {self.queue_bytes} bytes")
        if self.queue_packets is not None and not 0 < self.queue_packets < 1 << 32:
            raise ValueError(f"queue of {self.interface}: {self.queue_packets} packets")


@dataclass(frozen=True)
class PortStatistics:
    """Counters of one port since the start.

    Packets and bytes are counted as on a wire: after GSO frames are split and before packets are
    joined, with all headers, without FCS.

    rx_overrun: frames lost to a full receive ring, or a full buffer of `rate_in`
    rx_bad_offload: frames whose offload header is inconsistent with the frame
    rx_truncated: frames longer than 64 KiB
    rx_no_program: packets while no pipeline was attached
    tx_queue_full: packets lost to the port's full queue
    tx_refused: packets lost to the interface's full queue, or packet-ins that were not fetched
    tx_oversized, tx_down: packets over the MTU; packets while the interface was down or gone
    tx_errors: packets lost to other errors
    queue_*: what waits now, and the most that did
    capture_lost: packets that a capture could not write
    present: the interface exists
    joining: the port joins (False also after the system refused)
    """

    rx_packets: int
    rx_bytes: int
    rx_frames: int
    rx_overrun: int
    rx_bad_offload: int
    rx_truncated: int
    rx_no_program: int
    tx_packets: int
    tx_bytes: int
    tx_frames: int
    tx_queue_full: int
    tx_refused: int
    tx_oversized: int
    tx_down: int
    tx_errors: int
    queue_packets: int
    queue_bytes: int
    queue_packets_max: int
    queue_bytes_max: int
    capture_lost: int
    present: bool
    joining: bool


class _Statistics(ctypes.Structure):
    """struct ports_statistics"""

    _fields_ = [(one.name, ctypes.c_uint64) for one in fields(PortStatistics)]


class _Options(ctypes.Structure):
    """struct ports_options"""

    _fields_ = [
        ("interface", ctypes.c_char * 16),
        ("rate", ctypes.c_uint64),
        ("queue_bytes", ctypes.c_uint64),
        ("queue_packets", ctypes.c_uint64),
        ("rate_in", ctypes.c_uint64),
        ("train_bytes", ctypes.c_uint64),
        ("capture_in", ctypes.c_char_p),
        ("capture_out", ctypes.c_char_p),
    ]


class _Program(ctypes.Structure):
    """struct ports_program"""

    _fields_ = [
        ("sw", ctypes.c_void_p),
        ("call", ctypes.c_void_p),
        ("pool", ctypes.c_uint32),
        ("start_ns", ctypes.c_uint64),
    ]


_POINTER, _NUMBER, _TEXT = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p
_FUNCTIONS: Functions = {
    "ports_create": (_POINTER, [_NUMBER]),
    "ports_destroy": (None, [_POINTER]),
    "ports_start": (ctypes.c_int, [_POINTER]),
    "ports_stop": (ctypes.c_int, [_POINTER]),
    "ports_attach": (ctypes.c_int, [_POINTER, ctypes.POINTER(_Program)]),
    "ports_add": (ctypes.c_int, [_POINTER, _NUMBER, ctypes.POINTER(_Options)]),
    "ports_get_statistics": (ctypes.c_int, [_POINTER, _NUMBER, ctypes.POINTER(_Statistics)]),
    "ports_packet_out": (ctypes.c_int, [_POINTER, _TEXT, ctypes.c_size_t]),
    "ports_next_event": (
        ctypes.c_int64,
        [_POINTER, ctypes.POINTER(ctypes.c_uint8), _POINTER, ctypes.c_size_t, ctypes.c_int],
    ),
    "ports_probe_gso": (ctypes.c_int, [_TEXT, ctypes.c_size_t]),
}


@cache
def load_driver() -> ctypes.CDLL:
    """Returns the compiled runtime of ports. Raises PortsError if it cannot be compiled."""
    try:
        return load_library("ports", RUNTIME / "interfaces", _FUNCTIONS, RUNTIME, use_errno=True)
    except CompilerError as error:
        raise PortsError(str(error)) from error


@cache
def probe_gso() -> str | None:
    """Returns None if UDP GSO works through packet sockets end to end, else the reason why not.

    Probed once per process, over a pair of interfaces in a network namespace of its own.
    """
    reason = ctypes.create_string_buffer(256)
    works = load_driver().ports_probe_gso(reason, len(reason))
    return None if works else reason.value.decode()


class Ports:
    """The interfaces of one switch.

    pipeline       forwards; None: packets are read and dropped until attach()
    ports          by number (0..510)
    cpu_port       its number; frames that leave through it go to on_packet_in
    pcap_dir       captures of every port: <interface>_in.pcap and <interface>_out.pcap
    plain          never join; also if the environment sets RACKHUB_PLAIN to other than 0
    on_packet_in   called with each frame for the CPU port, in a thread of this object

    attach(), packet_out() and statistics() may be called from any thread. After stop() the object
    is closed; only statistics() still returns the last values.
    """

    def __init__(
        self,
        pipeline: Pipeline | None,
        ports: Mapping[int, PortOptions],
        *,
        cpu_port: int | None = None,
        pcap_dir: Path | None = None,
        plain: bool = False,
        on_packet_in: Callable[[bytes], None] | None = None,
    ) -> None:
        self._native = load_driver()
        self._options = dict(ports)
        self._cpu_port = cpu_port
        self._pcap_dir = pcap_dir
        self._plain = plain or os.environ.get(_PLAIN_VARIABLE, "0") not in ("", "0")
        self._on_packet_in = on_packet_in
        self._pipeline = pipeline
        self._reader: threading.Thread | None = None
        self._last: dict[int, PortStatistics] = {}
        if cpu_port is not None and not 0 <= cpu_port < NO_PORT:
            raise ValueError(f"CPU port {cpu_port}: not a port number (0..{NO_PORT - 1})")
        self._handle: int | None = self._native.ports_create(
            NO_PORT if cpu_port is None else cpu_port
        )
        if not self._handle:
            code = ctypes.get_errno()
            raise PortsError(f"cannot set up the ports: {os.strerror(code)}")
        self._numbers: set[int] = set()
        self._guard = threading.RLock()

    def __enter__(self) -> Ports:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Opens all interfaces and starts to forward. Raises NoSuchInterface, NoPermission,
        PortsError, and leaves nothing open then."""
        with self._guard:
            self._check_open()
            if self._reader is not None:
                raise PortsError("the ports are running already")
            try:
                self._open_all()
            except BaseException:
                self.stop()
                raise

    def _open_all(self) -> None:
        if self._pcap_dir is not None:
            self._pcap_dir.mkdir(parents=True, exist_ok=True)
        if not self._plain and any(one.join for one in self._options.values()):
            reason = probe_gso()
            if reason is not None:
                self._plain = True
                log.warning("packets leave one by one, GSO does not work here: %s", reason)
        if self._cpu_port is not None:
            self._add(self._cpu_port, _Options(b"", 0, 1 << 20), "the CPU port")
        for number, options in sorted(self._options.items()):
            self._add_port(number, options)
        self.attach(self._pipeline)
        self._result(self._native.ports_start(self._handle), "start the ports")
        self._reader = threading.Thread(target=self._read_events, name="switch-events", daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """Stops forwarding and closes interfaces and captures. Idempotent."""
        with self._guard:
            if self._handle is None:
                return
            self._native.ports_stop(self._handle)
            reader, self._reader = self._reader, None
        # Without the guard, as the callback may be about to call this object.
        if reader is not None and reader is not threading.current_thread():
            reader.join()
        with self._guard:
            if self._handle is not None:
                self._last = self._read_statistics()
                self._native.ports_destroy(self._handle)
                self._handle = None

    def attach(self, pipeline: Pipeline | None) -> None:
        """Attaches another pipeline and drops what waits in queues. Close the old pipeline only
        afterwards."""
        with self._guard:
            self._check_open()
            program = None
            if pipeline is not None:
                program = _Program(
                    pipeline.handle, pipeline.functions, pipeline.pool, pipeline.started_ns
                )
            self._result(self._native.ports_attach(self._handle, program), "attach the pipeline")
            self._pipeline = pipeline

    def packet_out(self, frame: bytes) -> None:
        """Processes a frame as if it had arrived on the CPU port.

        Raises PortsError if there is no CPU port, the frame is over 16,384 bytes, or too many wait.
        """
        with self._guard:
            self._check_open()
            if self._cpu_port is None:
                raise PortsError("packet-out, but the switch has no CPU port")
            self._result(
                self._native.ports_packet_out(self._handle, frame, len(frame)),
                f"take a packet-out of {len(frame)} bytes",
            )

    def statistics(self) -> dict[int, PortStatistics]:
        """Returns counters by port number, those of the CPU port included."""
        with self._guard:
            return self._read_statistics() if self._handle is not None else dict(self._last)

    def _read_statistics(self) -> dict[int, PortStatistics]:
        found = {}
        for number in sorted(self._numbers):
            raw = _Statistics()
            result = self._native.ports_get_statistics(self._handle, number, raw)
            self._result(result, f"read port {number}")
            values: dict[str, Any] = {name: getattr(raw, name) for name, *_ in raw._fields_}
            for name in ("present", "joining"):
                values[name] = bool(values[name])
            found[number] = PortStatistics(**values)
        return found

    def _add_port(self, number: int, options: PortOptions) -> None:
        train = 0
        if options.join and not self._plain:
            train = _LONGEST_TRAIN
            if options.rate is not None:
                train = min(train, max(1, int(options.rate * TRAIN_SECONDS / 8)))
        captures: list[bytes | None] = [None, None]
        if self._pcap_dir is not None:
            captures = [
                os.fsencode(self._pcap_dir / f"{options.interface}_{direction}.pcap")
                for direction in ("in", "out")
            ]
        raw = _Options(
            os.fsencode(options.interface),
            options.rate or 0,
            options.queue_bytes,
            options.queue_packets or 0,
            options.rate_in or 0,
            train,
            *captures,
        )
        self._add(number, raw, f"port {number} ({options.interface})")

    def _add(self, number: int, raw: _Options, what: str) -> None:
        result = self._native.ports_add(self._handle, number, raw)
        if result == -errno.ENODEV:
            raise NoSuchInterface(f"{what}: there is no such interface in this network namespace")
        if result in (-errno.EPERM, -errno.EACCES):
            raise NoPermission(
                f"{what}: {os.strerror(-result)}; raw sockets need root, CAP_NET_RAW or a user "
                "namespace (unshare -U -r -n), captures a directory that can be written"
            )
        self._result(result, f"open {what}")
        self._numbers.add(number)

    def _check_open(self) -> None:
        if self._handle is None:
            raise PortsError("the ports were stopped")

    @staticmethod
    def _result(result: int, doing: str) -> None:
        if result < 0:
            raise PortsError(f"cannot {doing}: {os.strerror(-result)}")

    def _read_events(self) -> None:
        handle = self._handle
        kind = ctypes.c_uint8()
        buffer = ctypes.create_string_buffer(MAX_FRAME)
        while True:
            length = self._native.ports_next_event(handle, kind, buffer, len(buffer), -1)
            if length < 0:
                return
            data = ctypes.string_at(buffer, length)
            if kind.value == 1:
                self._packet_in(data)
            else:
                level = logging.INFO if kind.value == 2 else logging.WARNING
                log.log(level, "%s", data.decode(errors="replace"))

    def _packet_in(self, frame: bytes) -> None:
        if self._on_packet_in is None:
            return
        try:
            self._on_packet_in(frame)
        except Exception:
            log.exception("packet-in of %d bytes is lost", len(frame))
