# SPDX-License-Identifier: Apache-2.0
"""One worker's transport with hand-made packets to and from it."""

from __future__ import annotations

import numpy as np

from hosts.worker.transport import WorkerTransport
from protocol.exponents import Exponents
from protocol.header import (
    PORT,
    Batch,
    Flag,
    Op,
    Phase,
    blank,
    carries_payload,
    ops,
    peer_array,
)
from protocol.plan import Address, StreamPlan, WorkerPlan

SERVER = (1000, PORT)


def lone(
    window: int = 2, world: int = 2, server: tuple[int, int] = SERVER, **more: object
) -> WorkerTransport:
    plan = WorkerPlan(
        job=1,
        epoch=1,
        world=world,
        lanes=4,
        rank=0,
        streams=(StreamPlan(0, 7, 0, window),),
        servers=(Address(*server),),
        counts=(64,),
        chunks_per_slice=1,
    )
    return WorkerTransport(plan, Exponents(64, world), **more)


def submit(transport: WorkerTransport, *chunks: int, value: float = 1.0) -> None:
    values = np.full((len(chunks), 4), value, np.float32)
    transport.submit(list(chunks), values, np.full(len(chunks), 4))


def sent(transport: WorkerTransport, now: float = 0.0) -> list[tuple[Op, int, int]]:
    """(op, seq, flags) of what it sends now."""
    batch, _ = transport.poll(now)
    if batch is None:
        return []
    kinds = [Op(int(op)) for op in ops(batch.headers)]
    return list(
        zip(kinds, batch.headers["seq"].tolist(), batch.headers["flags"].tolist(), strict=True)
    )


def results_of(batch: Batch, world: int = 2, corrupt: bool = False) -> Batch:
    """What the network answers to contributions of `world` workers who all sent the same."""
    headers = batch.headers.copy()
    headers["version_op"] = 1 << 4 | Op.RESULT
    headers["flags"] &= np.uint8(~Flag.RETRANSMIT & 0xFF)
    headers["workers"] = world
    headers["node"] = 0
    headers["checksum"] *= np.uint32(world)
    payloads = (batch.payloads.astype(np.int32) * world).astype(">i4")
    if corrupt:
        payloads[:, 1] ^= 1 << 20
    return Batch(headers, payloads, carries_payload(headers), batch.peers)


def state_of(
    transport: WorkerTransport, seq: int, chunk: int, phase: Phase, children: int, **fields: int
) -> Batch:
    headers = blank(1, Op.STATE)
    headers["flags"] = phase << 4
    for name, value in {
        "job": 1,
        "epoch": 1,
        "seq": seq,
        "chunk": chunk,
        "children": children,
        "node": 7,
        **fields,
    }.items():
        headers[name] = value
    full = np.zeros(1, np.bool_)
    return Batch(headers, np.zeros((1, 4), ">i4"), full, peer_array([SERVER]))


def contacted(transport: WorkerTransport, *chunks: int) -> None:
    """Completes first contacts of `chunks`, values all one."""
    submit(transport, *chunks)
    while not transport.idle:
        batch, _ = transport.poll(0.0)
        assert batch is not None
        transport.on_packets(0.0, results_of(batch))
    transport.take_completed()
