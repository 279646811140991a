# SPDX-License-Identifier: Apache-2.0
"""Computes in one process, without a network, what workers get from the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.codecs.codec import Codec
from protocol.codecs.registry import USUAL
from protocol.exponents import Exponents
from protocol.payloads import Exps, Floats, chunk_exponents, rank_order_sum


@dataclass(slots=True)
class ReferenceSums:
    """Sums of n chunks as the network computes them.

    sums: (n, lanes) float32.
    flags: (n,) of the integer sum, non-zero where the chunk went DIRECT.
    exponents: (n,) used for quantisation.
    max_exponents: (n,) that results report.
    """

    sums: Floats
    flags: npt.NDArray[np.uint8]
    exponents: Exps
    max_exponents: Exps


def reference_sums(values: Floats, exponents: Any, codec: Codec = USUAL) -> ReferenceSums:
    """Computes the results that every worker gets for n chunks with these exponents.

    values: (world, n, lanes) float32, by rank; exponents: (n,). Never raises: chunks that do not
    fit or are not finite are summed in float32 in rank order, as the server does.
    """
    world, n, lanes = values.shape
    every = np.tile(np.asarray(exponents, np.int16), world)
    words, own, raised = codec.encode(values.reshape(world * n, lanes), every, world)
    total = words.reshape(values.shape).sum(axis=0, dtype=np.int64)
    flags = np.bitwise_or.reduce(raised.reshape(world, n), axis=0)
    most = own.reshape(world, n).max(axis=0)
    sums = codec.decode(total.astype(codec.lane), exponents, world)
    flagged = flags != 0
    if flagged.any():
        sums[flagged] = rank_order_sum(values[:, flagged])
    return ReferenceSums(sums, flags, np.asarray(exponents, np.int16), most)


def reference_start(values: Floats, chunks: Any, policy: Exponents) -> Floats:
    """Computes the round of initial parameters.

    values: (world, n, lanes) float32, zero padded, by rank. Returns the parameters (n, lanes) that
    servers with an optimizer start with. Advances `policy` as a worker's transport would: they are
    always sent DIRECT.
    """
    rows = np.asarray(chunks, np.int64)
    rounds, first = policy.begin(rows)
    own = np.stack([chunk_exponents(mine)[0] for mine in values]).max(axis=0)
    policy.contact(rows[first], own[first])
    policy.complete(rows, rounds, own)
    return np.array(values[0])


def reference_round(values: Floats, chunks: Any, policy: Exponents) -> ReferenceSums:
    """Computes one round of `chunks`.

    values: (world, n, lanes) float32, zero padded, by rank. Advances `policy` as a worker's
    transport would. Raises ValueError for values of another world, or rounds that are not ready.
    """
    if values.shape[0] != policy.world:
        raise ValueError(f"values of {values.shape[0]} ranks for a world of {policy.world}")
    rows = np.asarray(chunks, np.int64)
    rounds, first = policy.begin(rows)
    if first.any():
        own = np.stack([chunk_exponents(mine[first])[0] for mine in values])
        policy.contact(rows[first], own.max(axis=0))
    if not policy.ready(rows, rounds).all():
        raise ValueError("a chunk's previous round is not complete")
    result = reference_sums(values, policy.exponents(rows, rounds), policy.codec)
    policy.complete(rows, rounds, result.max_exponents)
    return result
