# SPDX-License-Identifier: Apache-2.0
"""Reads the job service's status of all jobs."""

from __future__ import annotations

import asyncio

import grpc

from emulation.nodes.process_supervisor import JOBS_ADDRESS
from protocol import jobs_pb2, jobs_pb2_grpc


async def read_status(seconds: float) -> jobs_pb2.StatusReply | None:
    """Returns the status of all jobs; None if the service does not answer in time."""
    return await asyncio.to_thread(_status, seconds)


def _status(seconds: float) -> jobs_pb2.StatusReply | None:
    with grpc.insecure_channel(JOBS_ADDRESS) as channel:
        stub = jobs_pb2_grpc.JobServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            reply: jobs_pb2.StatusReply = stub.Status(jobs_pb2.StatusRequest(), timeout=seconds)
        except grpc.RpcError:
            return None
    return reply
