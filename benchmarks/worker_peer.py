# SPDX-License-Identifier: Apache-2.0
"""The peer of ``rackhub bench worker``: job service and aggregation root of a one-worker job.

The sum of one worker is its own contribution, so the root turns each CONTRIBUTE into a RESULT in
place (first byte only) and returns the whole train in one call. Two system calls a train are far
less than the worker spends, and the results pass all of the worker's checks.

``python -m benchmarks.worker_peer --help``. Prints ``ready`` once it serves; ends with its input.
"""

from __future__ import annotations

import argparse
import select
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np

from benchmarks.common import pin
from hosts.net.offload import PLAIN, UDP_GRO, available, received_segment_size, segment_size_message
from hosts.net.udp import grow_receive_buffer
from protocol import jobs_pb2, jobs_pb2_grpc
from protocol.header import VERSION, Op
from protocol.plan import Address, StreamPlan, WorkerPlan

NONCE = "bench"
ADDRESS = "127.0.0.1"

_LARGEST_TRAIN = 1 << 16
_RECEIVE_BUFFER = 4 << 20


class Root:
    """The socket of a root with one child, bound to a free port (`address`)."""

    def __init__(self, segmented: bool) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        grow_receive_buffer(self._socket, _RECEIVE_BUFFER)
        if segmented:
            self._socket.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        self._socket.bind((ADDRESS, 0))
        self.address = Address.of(*self._socket.getsockname())
        self._buffer = memoryview(bytearray(_LARGEST_TRAIN))
        self._bytes = np.frombuffer(self._buffer, np.uint8)
        # Reply types by a packet's first byte. A QUERY is answered that nothing has arrived.
        self._answers = np.arange(256, dtype=np.uint8)
        for op, answer in ((Op.CONTRIBUTE, Op.RESULT), (Op.QUERY, Op.STATE)):
            self._answers[VERSION << 4 | op] = VERSION << 4 | answer

    def answer_until(self, end: int) -> None:
        """Answers packets until descriptor `end` is readable or at its end."""
        poller = select.poll()
        poller.register(end, select.POLLIN)
        poller.register(self._socket, select.POLLIN)
        while not any(descriptor == end for descriptor, _ in poller.poll()):
            try:
                while True:
                    self._answer()
            except BlockingIOError:
                continue

    def _answer(self) -> None:
        room = socket.CMSG_SPACE(4)
        length, ancillary, _, source = self._socket.recvmsg_into([self._buffer], room)
        segment = max(1, received_segment_size(ancillary, length))
        firsts = self._bytes[:length:segment]
        firsts[:] = self._answers[firsts]
        train = [segment_size_message(segment)] if length > segment else []
        self._socket.sendmsg([self._buffer[:length]], train, 0, source)


class OneJob(jobs_pb2_grpc.JobServiceServicer):
    """The job service of a job with one worker, one stream and a server at its root.

    Method names and messages are those of jobs.proto.
    """

    def __init__(self, server: Address, lanes: int, window: int) -> None:
        self._server = server
        self._lanes = lanes
        self._window = window
        self._planned = threading.Event()
        self._over = threading.Event()
        self._counts: tuple[int, ...] = ()

    def ConnectService(  # noqa: N802
        self, request: jobs_pb2.ConnectServiceRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.ConnectServiceReply:
        """Accepts any caller as the worker."""
        return jobs_pb2.ConnectServiceReply(job=1, world=1, lanes=self._lanes)

    def InitService(  # noqa: N802
        self, request: jobs_pb2.InitServiceRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.InitServiceReply:
        """Takes the job's keys and makes its plan."""
        self._counts = tuple(-(-key.elements // self._lanes) for key in request.keys)
        self._planned.set()
        return jobs_pb2.InitServiceReply()

    def Watch(  # noqa: N802
        self, request: jobs_pb2.WatchRequest, context: grpc.ServicerContext
    ) -> Iterator[jobs_pb2.Instruction]:
        """Sends the plan, then nothing until the worker leaves."""
        context.add_callback(self._over.set)
        context.add_callback(self._planned.set)
        self._planned.wait()
        if self._counts:
            stream = StreamPlan(stream=0, node=1, sender=0, window=self._window)
            plan = WorkerPlan(
                job=1, epoch=1, world=1, lanes=self._lanes, rank=0, streams=(stream,),
                servers=(self._server,), counts=self._counts, chunks_per_slice=32, members=(0,),
            )  # fmt: skip
            yield jobs_pb2.Instruction(epoch=1, plan=plan.to_message())
            self._over.wait()

    def Resync(  # noqa: N802
        self, request: jobs_pb2.ResyncRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.ResyncReply:
        """Refuses: there is only one plan."""
        if request.WhichOneof("what") == "broken":
            context.abort(grpc.StatusCode.ABORTED, request.broken.reason)
        return jobs_pb2.ResyncReply()

    def Heartbeat(  # noqa: N802
        self, request: jobs_pb2.HeartbeatRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.HeartbeatReply:
        """Acknowledges."""
        return jobs_pb2.HeartbeatReply(epoch=1)

    def Leave(  # noqa: N802
        self, request: jobs_pb2.LeaveRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.LeaveReply:
        """Ends the job."""
        self._over.set()
        return jobs_pb2.LeaveReply()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves until the end of standard input."""
    options = _parser().parse_args(arguments)
    pin(options.core)
    offload = PLAIN if options.plain else available()
    root = Root(offload.coalesce)
    server = grpc.server(ThreadPoolExecutor(4))
    service = OneJob(root.address, options.lanes, options.window)
    jobs_pb2_grpc.add_JobServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{options.service}")
    server.start()
    print("ready", flush=True)
    root.answer_until(sys.stdin.fileno())
    server.stop(grace=None).wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.worker_peer",
        description="Answers one worker's contributions as the root of its job.",
    )
    parser.add_argument("--service", required=True, metavar="PATH", help="socket to be made")
    parser.add_argument("--lanes", required=True, type=int, help="of a chunk")
    parser.add_argument("--window", required=True, type=int, help="chunks in flight")
    parser.add_argument("--core", required=True, type=int, help="to run on")
    parser.add_argument("--plain", action="store_true", help="without segmentation offload")
    return parser


if __name__ == "__main__":
    main()
