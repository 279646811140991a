# SPDX-License-Identifier: Apache-2.0
"""Reads the outcome counters of switches over P4Runtime.

Any client may read (P4Runtime 1.3, section 5.3), so this needs no controller and works while the
controller is stuck.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc

from controller.p4rt.dataplane import DataPlane
from controller.p4rt.entries import Entity
from emulation.nodes.processes import ProcessError
from emulation.nodes.switchprocess import SwitchProcess
from observability.outcomes import Counts
from switch.p4runtime.stubs import p4runtime_pb2, p4runtime_pb2_grpc
from testbed.targets import DEVICE_ID

ANSWER_SECONDS = 5.0


async def read(
    switches: Iterable[SwitchProcess], dataplane: DataPlane, seconds: float | None = None
) -> tuple[Counts, list[ProcessError]]:
    """Returns the counters of each switch by name, and an error for each that times out.

    A switch that refuses the connection has neither: it is being restarted.
    seconds: time to answer; ``ANSWER_SECONDS`` if None.
    """
    seconds = ANSWER_SECONDS if seconds is None else seconds
    chosen = list(switches)
    request = p4runtime_pb2.ReadRequest(
        device_id=DEVICE_ID, entities=[dataplane.program.outcome_counts()]
    )
    answers = await asyncio.gather(
        *(asyncio.to_thread(_read, switch.reached, request, seconds) for switch in chosen)
    )
    counts: Counts = {}
    silent = []
    for switch, answer in zip(chosen, answers, strict=True):
        if isinstance(answer, list):
            counts[switch.name] = dataplane.program.outcomes_in(answer)
        elif answer is grpc.StatusCode.DEADLINE_EXCEEDED:
            assert switch.process is not None
            what = f"does not answer P4Runtime within {seconds:g} s"
            silent.append(ProcessError(switch.name, what, switch.process.log))
    return counts, silent


def _read(
    address: str, request: p4runtime_pb2.ReadRequest, seconds: float
) -> list[Entity] | grpc.StatusCode:
    """Returns the counter's cells of one switch, or the status of the failed call."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)  # type: ignore[no-untyped-call]
            replies = stub.Read(request, timeout=seconds)
            return [entity for reply in replies for entity in reply.entities]
        except grpc.RpcError as error:
            status: grpc.StatusCode = error.code()
            return status
