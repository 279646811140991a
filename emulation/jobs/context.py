# SPDX-License-Identifier: Apache-2.0
"""The parts of a testbed that its jobs use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from controller.p4rt.dataplane import DataPlane
from emulation.jobs.counter_delta import CounterDeltas
from emulation.jobs.recovery import FaultLog
from emulation.network.emulated import Network
from emulation.nodes.process_supervisor import ProcessSupervisor
from emulation.nodes.processes import ProcessError
from observability.messages.jobs import Clock
from observability.record import RunDirectory
from observability.series import SeriesWriter


@dataclass
class TestbedContext:
    """The parts of a testbed that its jobs use.

    suspects: returns an error for each of the testbed's processes that is stuck.
    deltas: counters of all jobs that train.
    faults: log of faults and of jobs' recovery from them.
    tell: reports a fault to the jobs' watchers.
    series: time series of the run.
    """

    run: RunDirectory
    network: Network
    dataplane: DataPlane
    nodes: ProcessSupervisor
    clock: Clock
    suspects: Callable[[], Awaitable[list[ProcessError]]]
    deltas: CounterDeltas
    faults: FaultLog
    tell: Callable[[str], None]
    series: SeriesWriter
