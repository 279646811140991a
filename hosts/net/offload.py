# SPDX-License-Identifier: Apache-2.0
"""UDP segmentation offload: its kernel interface, and detection of support.

With UDP_SEGMENT one system call hands the kernel a train of equal datagrams; with UDP_GRO one call
receives such a train (Linux `udp(7)`; `include/uapi/linux/udp.h`). Python's `socket` names neither.
"""

from __future__ import annotations

import errno
import functools
import os
import select
import socket
import struct
from dataclasses import dataclass

UDP_SEGMENT = 103
UDP_GRO = 104

# The kernel takes 64 segments a call (UDP_MAX_SEGMENTS; 128 since 6.9), of together no more than
# an IPv4 datagram's payload (`protocol.header.LARGEST_DATAGRAM`).
MAX_SEGMENTS = 60

# Errors of a send whose interface cannot segment: no checksum offload (EIO), or a
# segment larger than the MTU or a kernel without it (EINVAL, ENOPROTOOPT).
REFUSALS = frozenset({errno.EIO, errno.EINVAL, errno.ENOPROTOOPT, errno.EOPNOTSUPP})

_PROBE_TIMEOUT = 0.5  # s; loopback answers in microseconds


@dataclass(frozen=True)
class Offload:
    """The offloads in use: `segment` on send, `coalesce` on receive; `reason` says why one is
    off."""

    segment: bool
    coalesce: bool
    reason: str = ""


PLAIN = Offload(False, False, "switched off")

# Set to 1, every part of a testbed sends plain datagrams.
PLAIN_VARIABLE = "RACKHUB_PLAIN"


def available() -> Offload:
    """Returns the offloads to use: none if the environment sets RACKHUB_PLAIN=1, else those of
    `probe`."""
    return PLAIN if os.environ.get(PLAIN_VARIABLE) == "1" else probe()


def segment_size_message(size: int) -> tuple[int, int, bytes]:
    """Returns the ancillary data that splits one send into `size`-byte datagrams."""
    return (socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", size))


def received_segment_size(ancillary: list[tuple[int, int, bytes]], length: int) -> int:
    """Returns the datagram size of a received train of `length` bytes; `length` for a single
    datagram."""
    for level, kind, data in ancillary:
        if level == socket.IPPROTO_UDP and kind == UDP_GRO:
            return max(1, int(struct.unpack_from("=i", data)[0]))
    return length


@functools.cache
def probe(address: str = "127.0.0.1") -> Offload:
    """Sends a train from `address` to itself and checks what arrives; cached per process.

    Never raises: `reason` of the result names what does not work, and plain datagrams are used
    then.
    """
    try:
        return _probe(address)
    except OSError as error:
        return Offload(False, False, f"probe on {address}: {error}")


def _probe(address: str) -> Offload:
    pieces = [b"a" * 96, b"b" * 96, b"c" * 40]
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
    ):
        sender.bind((address, 0))
        receiver.bind((address, 0))
        receiver.setblocking(False)
        try:
            receiver.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
            coalesce = True
        except OSError:
            coalesce = False
        sender.sendmsg(
            [b"".join(pieces)],
            [segment_size_message(len(pieces[0]))],
            0,
            receiver.getsockname(),
        )
        poller = select.poll()
        poller.register(receiver, select.POLLIN)
        received: list[bytes] = []
        while len(received) < len(pieces) and poller.poll(int(_PROBE_TIMEOUT * 1000)):
            data, ancillary, _, _ = receiver.recvmsg(1 << 16, socket.CMSG_SPACE(4))
            size = received_segment_size(ancillary, len(data))
            received += [data[at : at + size] for at in range(0, len(data), size)]
    if received != pieces:
        return Offload(False, False, f"probe on {address}: a train did not arrive as sent")
    return Offload(True, coalesce, "" if coalesce else "no UDP_GRO in this kernel")
