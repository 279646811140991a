# SPDX-License-Identifier: Apache-2.0
"""Repeats iterations of an emulated job in virtual time: the times that its links and its protocol
explain. ``python -m simulation.replay --help``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from controller.p4rt.dataplane import DataPlane
from observability.messages.process_reports import Report
from simulation.jobrun import VirtualJob
from simulation.network import Network
from specs import jobfile
from specs.jobfile import JobFile
from specs.jobspec import ComputeSpec
from testbed.errors import JobError
from testbed.program import read_program
from topologies.model.addressing import Addressing
from topologies.model.spec import read as read_topology
from topologies.model.topology import Costs, Topology
from workloads.trainer import check_one_thread

__all__ = ["replay"]

_ALIKE, _TOLERANCE = 3, 0.01  # so many iterations, that differ by this share at most, are enough
_VARYING = 100


class _Replayed(VirtualJob):
    """A job of which only the times of iterations matter."""

    def __init__(self, network: Network, dataplane: DataPlane, file: JobFile, folder: Path) -> None:
        placement = file.place(network.topology)
        super().__init__(
            network, dataplane, file, file.spec.name, placement, folder, lambda _: None
        )
        self.seconds: list[float] = []

    def take(self, rank: int, report: Report) -> None:
        """Handles a worker's report."""
        super().take(rank, report)
        if rank == 0 and report["report"] == "progress":
            self.seconds += [end - began for began, end in report["spans"]]


def replay(
    topology: Topology, dataplane: DataPlane, file: JobFile, seconds: float
) -> Sequence[float]:
    """Returns the times of a job's iterations in virtual time, but for the first, which waits for
    all workers to begin and for exponents: until the last three are alike, as without losses they
    soon are unless the order of chunks varies, or as many as are done within so many seconds of
    real time.

    Nodes and computing cost nothing, whatever the files say, as in emulation they take what they
    take. Raises ``JobError``, ``VirtualError``.
    """
    until = time.monotonic() + seconds
    topology = replace(topology, costs=Costs())
    spec = file.spec.model_copy(update={"compute": ComputeSpec()})
    file = replace(file, spec=spec, layer_times=None)
    in_network = spec.propagation.in_network
    network = Network(topology, Addressing(topology), dataplane, priorities=in_network)
    with tempfile.TemporaryDirectory(prefix="rackhub-replay-") as folder:
        job = _Replayed(network, dataplane, file, Path(folder))
        most = min(spec.iterations - job.forecast.before, 1 + _VARYING)
        try:
            network.controller.begin()
            running = network.operator.tasks.thread(job.run, name=job.name)
            running.start()
            network.engine.run(
                lambda: (
                    len(job.seconds) >= most
                    or (not topology.impaired and _alike(job.seconds[1:]))
                    or job.state == "failed"
                    or time.monotonic() > until
                )
            )
        finally:
            network.close()
    if job.state == "failed":
        raise JobError(job.reason)
    return job.seconds[1:most]


def _alike(seconds: Sequence[float]) -> bool:
    """Returns whether enough iterations, the last ones, took the same time."""
    last = seconds[-_ALIKE:]
    return len(last) == _ALIKE and max(last) <= (1 + _TOLERANCE) * min(last)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the process; prints the times as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m simulation.replay",
        description="Repeats iterations of a job in virtual time; prints their times.",
    )
    parser.add_argument("--topology", required=True, type=Path, metavar="FILE")
    parser.add_argument("--topology-seed", type=int, metavar="N")
    parser.add_argument("--job", required=True, type=Path, metavar="FILE")
    parser.add_argument("--restore", type=Path, metavar="FILE", help="checkpoint to go on from")
    parser.add_argument("--program", required=True, type=Path, metavar="FILE")
    parser.add_argument("--p4info", required=True, type=Path, metavar="FILE")
    parser.add_argument("--seconds", required=True, type=float, help="real time that it may take")
    options = parser.parse_args(arguments)
    check_one_thread()
    topology = read_topology(options.topology).seeded(options.topology_seed).topology
    plane = read_program(options.program, options.p4info)
    found = replay(topology, plane, jobfile.load(options.job, options.restore), options.seconds)
    print(json.dumps({"seconds": found}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
