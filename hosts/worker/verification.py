# SPDX-License-Identifier: Apache-2.0
"""Checks results: number of workers, lanes, exponent and checksum."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hosts.native.quantization import sums_of
from hosts.worker.slots import Rows, Slots
from protocol.header import FLAGGED, Batch
from protocol.payloads import sum_checks
from protocol.plan import WorkerPlan

Mask = npt.NDArray[np.bool_]

_FLAGGED = np.uint8(FLAGGED)


def wrong(
    plan: WorkerPlan, slots: Slots, batch: Batch, rows: Rows, direct: bool
) -> dict[str, Mask]:
    """Checks n RESULTs for `rows`, all DIRECT or none; returns the failures by cause.

    The masks (n,) for wrong_workers, wrong_lanes, wrong_exponent and wrong_checksum each hold the
    first failure of a packet. A flagged integer sum has no payload: only its number of workers is
    checked, and that it is no exponent round.
    """
    headers = batch.headers
    workers = headers["workers"] == plan.world
    lanes = headers["lanes"] == slots.lanes[rows]
    exponent = headers["exponent"] == slots.exponent[rows]
    if direct:
        exponent[:] = True  # the server reports that of rank 0
        checksum = sum_checks(headers, batch.payloads, batch.full)
    else:
        # A sum may be flagged because these differed among workers, so they are not checked.
        flagged = (headers["flags"] & _FLAGGED) != 0
        lanes |= flagged
        exponent |= flagged
        sums = slots.hash[rows] * np.uint32(plan.world)
        if batch.full.all():
            sums += sums_of(batch.payloads)
        elif batch.full.any():
            sums[batch.full] += sums_of(batch.payloads[batch.full])
        # Of a flagged sum the payload is gone; an exponent round has none and no reason for
        # flags, unless another worker sent something else under this number.
        checksum = np.where(flagged, ~slots.exponent_round[rows], sums == headers["checksum"])
    right = np.ones(len(rows), np.bool_)
    causes: dict[str, Mask] = {}
    for cause, holds in (
        ("wrong_workers", workers),
        ("wrong_lanes", lanes),
        ("wrong_exponent", exponent),
        ("wrong_checksum", checksum),
    ):
        causes[cause] = right & ~holds
        right &= holds
    return causes
