# SPDX-License-Identifier: Apache-2.0
"""The testbed that a job runs on, as the job sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controller.p4rt.dataplane import DataPlane
from emulation.jobs.counter_delta import CounterDeltas
from emulation.jobs.recovery import FaultLog
from emulation.nodes.process_supervisor import ProcessSupervisor
from emulation.nodes.processes import ProcessError
from observability.record import RunDirectory
from observability.series import SeriesWriter

if TYPE_CHECKING:
    from emulation.network.emulated import Network


@dataclass
class TestbedContext:
    """What a job needs of the testbed that it runs on.

    suspects: an error for each of the testbed's processes that is stuck. deltas: of all jobs.
    tell: tells whoever watches of a fault. series: how it goes on.
    """

    run: RunDirectory
    network: Network
    dataplane: DataPlane
    nodes: ProcessSupervisor
    clock: str
    suspects: Callable[[], Awaitable[list[ProcessError]]]
    deltas: CounterDeltas
    faults: FaultLog
    tell: Callable[[str], None]
    series: SeriesWriter
