# SPDX-License-Identifier: Apache-2.0
"""The points of the experiment: four machines in a rack, policies, and what is varied."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from experiments.common.declaration import Point, Values
from experiments.common.sensitivity import FACTORS, setting, variations
from experiments.p3.models import INCEPTION, MODELS, RESNET, SOCKEYE, VGG, WORKERS, Model, compute

__all__ = [
    "ARTIFACT_SLICE",
    "BASELINE",
    "BYTESCHEDULER",
    "FEW",
    "FIFO",
    "ITERATIONS",
    "P3",
    "PLACEMENTS",
    "points",
]

# Policies. Parameters are those of P3's artifact (src/kvstore/kvstore_dist.h) and ByteScheduler's
# defaults for parameter servers (its documentation on scheduling).
BASELINE, FIFO, P3, BYTESCHEDULER = "baseline", "sliced FIFO", "P3", "ByteScheduler"
ARTIFACT_SLICE = 40_000
_PARTITION, _CREDIT = 1_000_000, "16 MB"  # 4,000,000 parameters
PLACEMENTS = ("cs", "ncs", "inc", "inc-server")

# The first also agrees on exponents, the second suffers from that, and the last has no next forward
# pass. Coarse points are without the third.
ITERATIONS, FEW = 4, 3
_CHUNK_BYTES = 16_000
_MTU = 16_300
_COALESCED = 16  # packets that hosts get at a time
_WINDOW = 256
_STREAMS = 4  # of whole keys, one for each server
MESSAGE = 20e-6  # seconds that a host takes for one message, each way
# 2 MB of a key in 780 us, one worker and one server: https://github.com/apache/mxnet/issues/14485
SERVER_RATE = 20.5  # Gbit/s
_SLICES = (1_000, 4_000, 12_000, 40_000, 50_000, 120_000, 400_000, 1_000_000)
_TRACED = "experiments.p3.traced:run"
_EMULATED = "experiments.common.emulated:run"
_SMALL_RATE = "10 Mbit/s"
_SMALL_KEYS = ("200 kB", "20 kB") * 3
_SMALL_SLICE = 2_500


def schedule(policy: str, size: int = ARTIFACT_SLICE) -> dict[str, Any]:
    """Returns the job key `schedule` of a policy.

    Args:
        size: Parameters of a slice.
    """
    if policy == BASELINE:
        return {"order": "fifo", "slice": "whole", "assign": "hashed", "release": "slice"}
    if policy == BYTESCHEDULER:
        return {"order": "credit", "slice": _PARTITION, "credit": _CREDIT}
    return {"order": "priority" if policy == P3 else "fifo", "slice": size, "release": "slice"}


def topology(rate: float, message: float = 0.0) -> dict[str, Any]:
    """Returns the topology file.

    Args:
        rate: Gbit/s. message: Seconds that a host takes for each packet.
    """
    interval = _COALESCED * 8 * _CHUNK_BYTES / (rate * 1e9)
    costs = {"interrupt_interval": f"{interval * 1e6:.6g} us"}
    if message:
        costs["host_per_packet"] = f"{message * 1e6:.6g} us"
    return {
        "name": "p3",
        "defaults": {
            "rate": f"{rate:g} Gbit/s",
            "delay": "10 us",
            "queue_bytes": "1 GiB",
            "mtu": _MTU,
        },
        "racks": [{"workers": WORKERS, "servers": WORKERS}],
        "costs": costs,
    }


def job(
    model: Model,
    policy: str,
    *,
    size: int = ARTIFACT_SLICE,
    placement: str = "cs",
    factor: float = 1.0,
    forward: float = 1.0,
    window: int = 0,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the job file and those that it names.

    Args:
        size: Parameters of a slice. factor, forward: As of ``compute``.
        window: Chunks in flight of each class; 0: the policy's.
    """
    computing, files = compute(model, factor, forward)
    sending = schedule(policy, size)
    if placement == "inc":
        sending["release"] = "chunk"
    per_slice = math.ceil(4 * size / _CHUNK_BYTES)
    content: dict[str, Any] = {
        "name": "p3",
        "workload": "model",
        "model": model.name,
        "iterations": ITERATIONS,
        "placement": placement,
        "compute": computing,
        "chunk_bytes": math.ceil(size / per_slice) * 4,
        "window": window or _WINDOW,
        "schedule": sending,
    }
    if placement == "inc-server":  # its switches and server; sizes have no steps to take there
        content |= {"placement": {"servers": ["s0"]}, "tree": "tor"}
    if policy == BASELINE:
        content |= {"window": model.window, "streams": _STREAMS}
    elif policy == FIFO and not placement.startswith("inc"):
        content["window"] = model.window
    elif policy == BYTESCHEDULER:
        content["window"] = model.window // 4
    return content, files


def points(quick: bool) -> Iterator[Point]:
    """Yields the points, the shortest runs first."""
    coarse = [*_gains(quick), *_slices(quick), *_placements(quick)]
    if quick:
        yield from (replace(one, job={**one.job, "iterations": FEW}) for one in coarse)
        return
    yield from coarse
    yield from _sensitivity()
    yield from _windows()
    yield from _software()
    yield from _small()
    for policy in (BASELINE, P3):
        content, files = job(RESNET, policy)
        values: Values = {
            "of": "links",
            "model": RESNET.name,
            "rate": RESNET.rate,
            "policy": policy,
        }
        yield Point(values, topology(RESNET.rate), content, files, by=_TRACED)


def _small() -> Iterator[Point]:
    """Yields small jobs that this machine carries in real time, on both clocks.

    Emulation has no time of computing but the machine's own, so a worker pushes all its keys at
    once.
    """
    network = {
        "name": "p3-small",
        "defaults": {"rate": _SMALL_RATE, "queue_bytes": "2 MiB"},
        "racks": [{"workers": WORKERS, "servers": 1}],
    }
    for clock in ("virtual", "emulated"):
        for policy in (BASELINE, P3):
            content = {
                "name": "p3-small",
                "workload": "layers",
                "layers": list(_SMALL_KEYS),
                "iterations": 13,
                "placement": "cs",
                "window": 1024 if policy == BASELINE else 64,
                "schedule": schedule(policy, _SMALL_SLICE),
            }
            values: Values = {"of": "small", "clock": clock, "policy": policy}
            real = clock == "emulated"
            yield Point(values, network, content, by=_EMULATED if real else "", emulated=real)


def _gains(quick: bool) -> Iterator[Point]:
    for model in (RESNET,) if quick else (RESNET, SOCKEYE, INCEPTION, VGG):
        rates = (model.rate, model.rates[-1]) if quick else model.rates
        for rate in rates:
            others: tuple[str, ...] = ()
            if rate == model.rate and not quick:
                others = (FIFO, BYTESCHEDULER)
            if model is VGG and rate == model.rates[-1] and not quick:
                others = (FIFO,)  # of which a figure is known
            for policy in (BASELINE, *others, P3):
                content, files = job(model, policy)
                values: Values = {"of": "gain", "model": model.name, "rate": rate, "policy": policy}
                yield Point(values, topology(rate), content, files)
    for model in MODELS if quick else ():
        if model in (SOCKEYE, VGG):
            for policy in (BASELINE, P3):
                content, files = job(model, policy)
                values = {"of": "gain", "model": model.name, "rate": model.rate, "policy": policy}
                yield Point(values, topology(model.rate), content, files)


def _slices(quick: bool) -> Iterator[Point]:
    for model in (RESNET,) if quick else (RESNET, SOCKEYE, VGG):
        for size in (ARTIFACT_SLICE, _SLICES[-1]) if quick else _SLICES:
            if model is not RESNET and size < 12_000:
                continue  # the same, and takes longest
            content, files = job(model, P3, size=size)
            chunks = math.ceil(4 * size / content["chunk_bytes"])
            values: Values = {"of": "slice", "model": model.name, "rate": model.rate, "slice": size}
            yield Point(values, topology(model.rate, MESSAGE / chunks), content, files)


def _placements(quick: bool) -> Iterator[Point]:
    for rate in (VGG.rate,) if quick else (VGG.rate, VGG.rates[0]):
        for placement in ("inc",) if quick else PLACEMENTS:
            for policy in (P3,) if quick else (FIFO, P3):
                content, files = job(VGG, policy, placement=placement)
                values: Values = {"of": "placement", "model": VGG.name, "rate": rate}
                yield Point(
                    {**values, "placement": placement, "policy": policy},
                    topology(rate),
                    content,
                    files,
                )


def _sensitivity() -> Iterator[Point]:
    for model in (RESNET, SOCKEYE, VGG):
        for factor in FACTORS:
            for policy in (BASELINE, P3):
                content, files = job(model, policy, factor=factor)
                values: Values = {"of": "times", "model": model.name, "rate": model.rate}
                yield Point(
                    {**values, "factor": factor, "policy": policy},
                    topology(model.rate),
                    content,
                    files,
                )
    for parameter, factor, _ in variations(("forward",)):
        for policy in (BASELINE, P3):
            content, files = job(SOCKEYE, policy, forward=factor)
            values = {**setting(parameter, factor), "model": SOCKEYE.name, "policy": policy}
            yield Point(values, topology(SOCKEYE.rate), content, files)


def _software() -> Iterator[Point]:
    """Yields what servers that handle bytes as slowly as MXNet's make of it."""
    for model in (VGG, SOCKEYE, RESNET):
        for policy in (BASELINE, P3):
            content, files = job(model, policy)
            network = topology(model.rate)
            network["costs"]["server_rate"] = f"{SERVER_RATE} Gbit/s"
            values: Values = {"of": "software", "model": model.name, "rate": model.rate}
            yield Point({**values, "policy": policy}, network, content, files)


def _windows() -> Iterator[Point]:
    for window in (64, 1024, 4096):
        content, files = job(RESNET, P3, window=window)
        values: Values = {
            "of": "window",
            "model": RESNET.name,
            "rate": RESNET.rate,
            "window": window,
        }
        yield Point(values, topology(RESNET.rate), content, files)
