# SPDX-License-Identifier: Apache-2.0
"""Reads what a job's iteration sums, and how long its layers take, from its file."""

from __future__ import annotations

from controller.p4rt.dataplane import DataPlane
from planner.iteration_time import Work
from planner.link_loads import Workload
from planner.parcels import Layers
from protocol.header import LANE_BYTES
from specs.jobfile import JobFile, JobFileError
from topologies.model.documents import errors_as
from workloads.layer_times import times_of
from workloads.workloads import layers, shapes


def work_of(file: JobFile, plane: DataPlane) -> Work:
    """Returns the work of an iteration of a job on a program of this data plane.

    Raises ``JobFileError`` for a layer trace of other layers.
    """
    spec = file.spec
    sizes = shapes(spec)
    load = Workload(tuple(sizes.values()), plane.lanes, 1, 1)
    return Work(
        load.chunks,
        plane.frame_bytes,
        file.compute_seconds,
        plane.chunks_per_slice(spec.slice_size),
        LANE_BYTES * sum(load.sizes),
        load.counts,
        _layers(file),
        spec.propagation,
        max(1, spec.streams),
    )


def _layers(file: JobFile) -> Layers | None:
    times = times_of(file)
    if times is None:
        return None
    by_layer = layers(file.spec)
    if file.layer_times is not None:
        with errors_as(JobFileError):
            file.layer_times.check(list(by_layer), f"the model of job {file.spec.name}")
    place = {name: at for at, names in enumerate(by_layer.values()) for name in names}
    return Layers(
        tuple(times[layer].forward_seconds for layer in by_layer),
        tuple(times[layer].backward_seconds for layer in by_layer),
        tuple(place[name] for name in shapes(file.spec)),
    )
