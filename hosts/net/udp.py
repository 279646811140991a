# SPDX-License-Identifier: Apache-2.0
"""A UDP socket for batches of aggregation packets.

One system call sends or receives up to 60 datagrams where the kernel can (`hosts.net.offload`). All
blocking is in `poll(2)`; nothing spins or sleeps.
"""

from __future__ import annotations

import errno
import functools
import math
import os
import select
import socket
from collections import Counter, deque
from typing import Any, NamedTuple

import numpy as np

from hosts.native.loader import load_native
from hosts.net.driver import Ahead, Counters
from hosts.net.offload import (
    MAX_SEGMENTS,
    REFUSALS,
    UDP_GRO,
    Offload,
    available,
    segment_size_message,
)
from hosts.net.pacer import urgent_bytes
from hosts.net.priority_queue import PriorityQueue, split_by_priority
from hosts.net.trains import Arrived, Receiver, send
from protocol.header import (
    LARGEST_DATAGRAM,
    SERVER_PORTS,
    Batch,
    Run,
    encode_runs,
    packet_bytes,
    peer_keys,
)
from protocol.priorities import STREAM_BYTE, priority_of
from protocol.runtime import REAL

# Not named by Python's socket module (asm-generic/socket.h, linux/in.h).
_SO_RCVBUFFORCE = 33
_IP_MTU_DISCOVER = 10
_IP_PMTUDISC_PROBE = 3
_SO_TIMESTAMPNS = 35

_IP_UDP_BYTES = 20 + 8
_WIRE_OVERHEAD = 14 + _IP_UDP_BYTES
# An idle token bucket lets a whole train pass at once, so a train is kept to about this much of
# the link's time.
_TRAIN_SECONDS = 0.001
_RECEIVE_BUFFER = 4 << 20
_ARENA_BYTES = 2 << 20
# Of one `receive`, whatever their size: a flood of small or empty datagrams must not keep a machine
# from its other work, nor make it look at more of them at once than of full ones.
_MOST_DATAGRAMS = 4096
# Of packets that wait here for more urgent ones: beyond it the kernel's buffer holds what arrives.
_MOST_KEPT = _ARENA_BYTES


class Endpoint:
    """A UDP socket that sends and receives batches of aggregation packets.

    address: (IPv4, port) to bind, port 0 for any. `ipv4` and `port` are the bound ones.
    lanes: int32 lanes per full payload; set it (`configure`) before packets are expected.
    link_rate: bit/s of the host's link, 0 if unknown: trains are cut to about 1 ms of it.
    queue_bytes: limit of the host interface's own queue. The socket's send buffer is kept below it,
        so a full queue blocks the sender instead of losing silently. None: the kernel's default
        send buffer.
    by_priority: urgent packets overtake others that wait here, to be sent or to be received (see
        `configure` and `receive`).
    queued: see Attachment.
    receive_buffer: bytes to request; the attribute is the size obtained (without CAP_NET_ADMIN at
        most net.core.rmem_max).
    offload: offloads to use; None: those that `available` returns.

    Raises OSError with the address in its text if it cannot be bound.
    """

    tick = 0.001  # poll(2)'s
    more = True  # unknown for a socket

    def __init__(
        self,
        address: tuple[str, int],
        *,
        lanes: int = 0,
        link_rate: int = 0,
        queue_bytes: int | None = None,
        receive_buffer: int = _RECEIVE_BUFFER,
        offload: Offload | None = None,
    ) -> None:
        self.counters = Counters()
        self.offload = available() if offload is None else offload
        self._queue_bytes = queue_bytes
        self._pending: deque[Run] | PriorityQueue[Run] = deque()
        self._kept: PriorityQueue[_Kept] = PriorityQueue(lambda kept: _first_stream(kept.batch))
        self._kept_bytes = 0
        self.by_priority = False
        self.queued = 0.0
        self.lanes = lanes
        self._native = load_native()
        arena = np.empty(_ARENA_BYTES, np.uint8)
        self.receiver = Receiver(self._native, arena, _MOST_DATAGRAMS)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.setblocking(False)
            # Set the don't-fragment bit and ignore ICMP that lowers the MTU: only a packet's
            # first fragment has a UDP header, so a fragmented one could not be aggregated.
            self._socket.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
            self.receive_buffer = grow_receive_buffer(self._socket, receive_buffer)
            self.configure(lanes, link_rate)
            if self.offload.coalesce:
                self._socket.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
            try:
                self._socket.bind(address)
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"cannot bind UDP {address[0]}:{address[1]}: {error.strerror}",
                ) from error
            self.address, self.port = self._socket.getsockname()
        except BaseException:
            self._socket.close()
            raise
        self.ipv4 = int.from_bytes(socket.inet_aton(self.address), "big")
        # Reentrant: a signal handler may interrupt `wake` or `close`.
        self._open_or_not = REAL.rlock()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._unhurried = select.poll()
        self._unhurried.register(self._wakeup, select.POLLIN)
        self._poller = select.poll()
        self._poller.register(self._wakeup, select.POLLIN)
        self._poller.register(self._socket, select.POLLIN)

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket; unsent trains are dropped."""
        with self._open_or_not:
            if self._socket.fileno() >= 0:
                self._socket.close()
                os.close(self._wakeup)
        self._pending.clear()

    def configure(
        self, lanes: int, link_rate: int, *, by_priority: bool = False, timed: bool = False
    ) -> None:
        """Sets the payload size (int32 lanes) and the link's rate (bit/s, 0: unknown).

        by_priority: keep little in the socket, where nothing can be overtaken, and send what waits
            here by priority; packets may then be sent while others wait. `receive` returns packets
            by priority, too. Stays so once it is.
        timed: have the kernel stamp datagrams when they arrive, for `queued`.
        """
        if timed != bool(self.receiver.inbox.timed):
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, timed)
            self.receiver.inbox.timed, self.queued = timed, 0.0
        if lanes != self.lanes:  # as in the socket, those of another size are no packets now
            self._kept.clear()
            self._kept_bytes = 0
        self.lanes = lanes
        self.datagram_bytes = packet_bytes(lanes)
        wire_bytes = self.datagram_bytes + _WIRE_OVERHEAD
        queue_bytes = self._queue_bytes
        if by_priority and not self.by_priority:
            self.by_priority = True
            waiting, self._pending = self._pending, PriorityQueue(_stream_of)
            while waiting:
                self._pending.append(waiting.popleft())
        if self.by_priority and link_rate:
            short = urgent_bytes(link_rate, wire_bytes)
            queue_bytes = short if queue_bytes is None else min(short, queue_bytes)
        packets: float = min(MAX_SEGMENTS, LARGEST_DATAGRAM // self.datagram_bytes)
        if link_rate:
            packets = min(packets, link_rate / 8 * _TRAIN_SECONDS / wire_bytes)
        if queue_bytes is not None:
            packets = min(packets, queue_bytes / 2 / wire_bytes)
        self._train_packets = max(1, int(packets))
        if queue_bytes is not None:
            # The kernel admits one more train while the buffer is not full, and doubles the value
            # given (socket(7)).
            room = queue_bytes - self._train_packets * wire_bytes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, max(1, room // 2))
        self.send_buffer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)

    def capacity(self) -> int:
        """Returns a lower bound of the full datagrams that fit in the receive buffer, to size
        windows by."""
        # Each may come alone, and then takes a power of two for its data and headers (the
        # kernel's allocator) and the bookkeeping of a socket buffer.
        data = 1 << (self.datagram_bytes + 512 - 1).bit_length()
        return self.receive_buffer // (data + 256)

    @property
    def socket(self) -> int:
        """The socket's file descriptor."""
        return self._socket.fileno()

    @property
    def files(self) -> tuple[int, int]:
        """The descriptors of its socket, and of the eventfd that `wake` writes to."""
        return self._socket.fileno(), self._wakeup

    @property
    def train_packets(self) -> int:
        """Most packets of a train."""
        return self._train_packets if self.offload.segment else 1

    @property
    def blocked(self) -> bool:
        """True while trains wait for room in the socket's send buffer."""
        return bool(self._pending)

    def wake(self) -> None:
        """Makes a `wait` return, from any thread or a signal handler; does nothing once closed."""
        with self._open_or_not:
            if self._socket.fileno() >= 0:
                os.eventfd_write(self._wakeup, 1)

    def wait(self, timeout: float, unhurried: float = 0.0) -> None:
        """Blocks until there is something to read, room to send, a `wake`, or `timeout`
        (seconds).

        unhurried: seconds in which reading and sending can wait. Several packets are then read at
            a time, which costs a wake-up less each.
        """
        # Round down: what is to be sent after it must not be late.
        unhurried_ms = int(min(unhurried, timeout) * 1000)
        if unhurried_ms and not self._kept:
            if self._unhurried.poll(unhurried_ms):
                os.eventfd_read(self._wakeup)
                return
            timeout -= unhurried_ms / 1000
        events = select.POLLIN | (select.POLLOUT if self._pending else 0)
        self._poller.modify(self._socket, events)
        if self._kept:
            timeout = 0.0
        # Round up: waking early by a fraction of a millisecond would spin until the deadline.
        wait_ms = None if math.isinf(timeout) else max(0, math.ceil(timeout * 1000))
        for descriptor, _ in self._poller.poll(wait_ms):
            if descriptor == self._wakeup:
                os.eventfd_read(self._wakeup)

    def send(self, batch: Batch) -> None:
        """Queues a batch and sends what the socket takes; `flush` sends the rest.

        Order is kept per destination; several destinations take turns, one train each. Raises
        OSError, naming the destination, for errors that waiting does not cure.
        """
        for part in split_by_priority(batch) if self.by_priority else (batch,):
            sent = self._send_natively(part, self.train_packets)
            if sent is not None:
                self.send_rest(part, sent)

    def send_rest(self, batch: Batch, sent: int) -> None:
        """Queues a batch but for the trains that were sent, as `send` does: what the socket has not
        taken is sent, or fails, train by train."""
        trains = _in_turns(encode_runs(_by_destination(batch), self.train_packets))
        self._pending.extend(trains[sent:])
        self.flush()

    def _send_natively(self, batch: Batch, most: int) -> int | None:
        """Sends packets in wire format; returns the number of trains sent, None if all were."""
        if self._pending:
            return 0
        trains, packets = send(self._native, self._socket.fileno(), batch, most)
        self.counters.send_calls += trains
        self.counters.sent += packets
        return trains if packets < len(batch) else None

    def flush(self) -> bool:
        """Sends queued trains; returns true if none is left."""
        while self._pending:
            train = self._pending[0]
            if train.count > 1 and not self.offload.segment:
                self._pending.popleft()
                self._pending.extendleft(reversed(_pieces(train)))
                continue
            try:
                self._send(train)
            except BlockingIOError:
                self.counters.send_blocked += 1
                return False
            except OSError as error:
                if train.count > 1 and error.errno in REFUSALS:
                    # The interface on this route does no UDP segmentation: plain from now on.
                    reason = f"refused on send: {error.strerror}"
                    self.offload = Offload(False, self.offload.coalesce, reason)
                    continue
                if error.errno != errno.ENOBUFS:
                    self._pending.popleft()
                    raise self._explained(error, train) from error
                # The kernel is out of memory and gives no notice when it is not: count as lost.
                self.counters.send_dropped += train.count
            else:
                self.counters.sent += train.count
            self._pending.popleft()
        return True

    def look_ahead(self, ahead: Ahead) -> None:
        """Does nothing, as sockets cannot read ahead."""

    def receive(self) -> Batch | None:
        """Returns packets that have arrived, in order, up to about 2 MiB or 4,096 datagrams.

        With `by_priority` they are of one priority, the highest of those here; packets of lower
        ones are kept for later calls, which first look for what has arrived since. While 2 MiB or
        more are kept, nothing else is read.

        Returns None if nothing has arrived. Malformed datagrams are counted and dropped, so the
        batch can be empty. It may be a view of the endpoint's own memory, valid until the next
        call.
        """
        batch = None
        if self._kept_bytes < _MOST_KEPT:
            batch = self._counted(self.receiver.receive(self._socket.fileno(), self.lanes))
        return self._most_urgent(batch) if self.by_priority else batch

    def _most_urgent(self, batch: Batch | None) -> Batch | None:
        """Returns the first packets of the highest priority, of those kept and those in `batch`,
        which was just read; keeps the others."""
        if not self._kept and (batch is None or not len(batch)):
            return batch
        now = REAL.now()
        if batch is not None and len(batch):
            parts = split_by_priority(batch)
            if len(parts) == 1:
                if not self._kept or _priority(batch) > _priority(self._kept[0].batch):
                    return batch
                parts = [batch.select(np.arange(len(batch)))]  # the next is read in its place
            for part in parts:
                self._kept.append(_Kept(part, now - self.queued))
                self._kept_bytes += len(part) * self.datagram_bytes
        first, arrived = self._kept.popleft()
        self._kept_bytes -= len(first) * self.datagram_bytes
        self.queued = now - arrived if self.receiver.inbox.timed else 0.0
        return first

    def received(self) -> Batch | None:
        """Returns what native code has read into the inbox of `receiver`. Raises OSError."""
        return self._counted(self.receiver.received(self.lanes))

    def _counted(self, found: Arrived | None) -> Batch | None:
        if found is None:
            return None
        self.counters.receive_calls += found.calls
        self.counters.received += len(found.batch)
        self.counters.malformed += found.malformed
        self.queued = self.receiver.inbox.queued
        return found.batch

    def _send(self, train: Run) -> None:
        ancillary = [segment_size_message(train.segment)] if train.count > 1 else []
        self._socket.sendmsg([train.buffer], ancillary, 0, _destination(train.peer))
        self.counters.send_calls += 1

    def _explained(self, error: OSError, train: Run) -> OSError:
        address, port = _destination(train.peer)
        what = f"cannot send from {self.address}:{self.port} to {address}:{port}"
        if error.errno == errno.EMSGSIZE:
            needed = train.segment + _IP_UDP_BYTES
            why = f"packets of {needed} bytes do not fit the MTU of the interface on that route"
        else:
            why = error.strerror or str(error)
        return OSError(error.errno, f"{what}: {why}")


class _Kept(NamedTuple):
    """Packets of one priority that were read, and when they arrived, in the mean (seconds)."""

    batch: Batch
    arrived: float


def worker_endpoint(address: str, **options: Any) -> Endpoint:
    """Returns an Endpoint at a port outside of SERVER_PORTS, by which switches identify servers.

    options: of Endpoint.
    """
    refused: list[Endpoint] = []  # kept open, so that the kernel assigns another port
    try:
        while (endpoint := Endpoint((address, 0), **options)).port in SERVER_PORTS:
            refused.append(endpoint)
        return endpoint
    finally:
        for one in refused:
            one.close()


def _by_destination(batch: Batch) -> Batch:
    """Groups the packets of each destination, keeping their order.

    A server's results for one chunk go to all its children, so consecutive packets may all differ
    in their destination.
    """
    if len(batch) < 2:
        return batch
    keys = peer_keys(batch.peers)
    begins = np.concatenate(([0], np.flatnonzero(keys[1:] != keys[:-1]) + 1))
    if len(set(keys[begins].tolist())) == len(begins):
        return batch
    _, first, owner = np.unique(keys, return_index=True, return_inverse=True)
    return batch.select(np.argsort(first[owner], kind="stable"))


def _in_turns(trains: list[Run]) -> list[Run]:
    """Interleaves the trains of different destinations, keeping the order of each."""
    turns: Counter[tuple[int, int]] = Counter()
    places = []
    for number, train in enumerate(trains):
        places.append((turns[train.peer], number))
        turns[train.peer] += 1
    return [trains[number] for _, number in sorted(places)]


def _pieces(train: Run) -> list[Run]:
    """Splits a train into trains of one datagram."""
    size = train.segment
    return [
        Run(train.peer, train.buffer[at : at + size], size, 1)
        for at in range(0, train.count * size, size)
    ]


def _stream_of(train: Run) -> int:
    return train.buffer[STREAM_BYTE]


def _first_stream(batch: Batch) -> int:
    return int(batch.headers["stream"][0])


def _priority(batch: Batch) -> int:
    return priority_of(_first_stream(batch))


@functools.lru_cache(maxsize=4096)
def _destination(peer: tuple[int, int]) -> tuple[str, int]:
    return socket.inet_ntoa(peer[0].to_bytes(4, "big")), peer[1]


def grow_receive_buffer(sock: socket.socket, size: int) -> int:
    """Requests `size` bytes of receive buffer; returns the bytes obtained."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
