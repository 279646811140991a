# SPDX-License-Identifier: Apache-2.0
"""The testbed that a job runs on, as the job sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controller.dataplane import DataPlane
from testbed.nodes import Nodes
from testbed.processes import ProcessError
from testbed.record import RunDirectory
from testbed.recovery import FaultLog
from testbed.series import SeriesWriter

if TYPE_CHECKING:
    from testbed.emulated import Network
    from testbed.jobrun import JobRun


@dataclass
class Place:
    """What a job needs of the testbed that it runs on.

    suspects: an error for each of the testbed's processes that is stuck. jobs: all of them. tell:
    tells whoever watches of a fault. series: how it goes on.
    """

    run: RunDirectory
    network: Network
    dataplane: DataPlane
    nodes: Nodes
    clock: str
    suspects: Callable[[], Awaitable[list[ProcessError]]]
    jobs: Mapping[str, JobRun]
    faults: FaultLog
    tell: Callable[[str], None]
    series: SeriesWriter
