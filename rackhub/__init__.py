# SPDX-License-Identifier: Apache-2.0
"""In-network gradient aggregation on racks of P4 switches, from Python.

A worker's program has a ``Client`` (or ``AsyncClient``). For experiments there are ``Topology``,
``run``, which returns a ``Result``, ``up`` for a testbed that stays up, and ``sweep``::

    racks = rackhub.Topology.build(racks=4, workers=8, cores=2, link="10 Gbit/s")
    result = rackhub.run(racks, "resnet50", clock="virtual", iterations=2)
    result.median_iteration_seconds, result.plot()

All errors with a text for users are an ``Error``. What is named here is imported when it is used:
a worker's process does not load what experiments need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emulation.network.namespaces import SandboxError as SandboxError
    from hosts.client import AsyncClient as AsyncClient
    from hosts.client import Client as Client
    from hosts.client import Joined as Joined
    from hosts.client import Stall as Stall
    from hosts.client import Sums as Sums
    from hosts.errors import CallOrderError as CallOrderError
    from hosts.errors import CheckpointError as CheckpointError
    from hosts.errors import ClientError as ClientError
    from hosts.errors import DoubleInitError as DoubleInitError
    from hosts.errors import JobRefusedError as JobRefusedError
    from hosts.errors import LeftBehindError as LeftBehindError
    from hosts.errors import NamespaceTakenError as NamespaceTakenError
    from hosts.errors import NoRoomError as NoRoomError
    from hosts.errors import NoValueError as NoValueError
    from hosts.errors import PlanWithdrawnError as PlanWithdrawnError
    from hosts.errors import PolicyError as PolicyError
    from hosts.errors import PriorityError as PriorityError
    from hosts.errors import ServiceUnavailableError as ServiceUnavailableError
    from hosts.errors import StalledError as StalledError
    from hosts.errors import TooLargeError as TooLargeError
    from hosts.errors import UnknownKeyError as UnknownKeyError
    from hosts.errors import UseAfterLeaveError as UseAfterLeaveError
    from hosts.errors import WrongNonceError as WrongNonceError
    from hosts.errors import WrongShapeError as WrongShapeError
    from hosts.errors import WrongTypeError as WrongTypeError
    from hosts.session.job_service import Service as Service
    from observability.control import ControlError as ControlError
    from observability.record import RunError as RunError
    from protocol.consistency import Consistency as Consistency
    from protocol.errors import Error as Error
    from protocol.learning_rate import Schedule as Schedule
    from protocol.optimizer_plan import KeyOptions as KeyOptions
    from protocol.optimizer_plan import OptimizerPlan as OptimizerPlan
    from protocol.propagation import Propagation as Propagation
    from rackhub.results import Iteration as Iteration
    from rackhub.results import Result as Result
    from rackhub.running import run as run
    from rackhub.sweeping import Sweep as Sweep
    from rackhub.sweeping import sweep as sweep
    from rackhub.testbeds import RunningJob as RunningJob
    from rackhub.testbeds import Testbed as Testbed
    from rackhub.testbeds import up as up
    from rackhub.topology import Topology as Topology
    from simulation.errors import VirtualError as VirtualError
    from specs.faultfile import FaultsError as FaultsError
    from specs.jobfile import JobFileError as JobFileError
    from specs.p4program import DataPlaneError as DataPlaneError
    from specs.sweepfile import SweepFileError as SweepFileError
    from sweeps.errors import SweepError as SweepError
    from testbed.errors import JobError as JobError
    from testbed.errors import LaunchError as LaunchError
    from testbed.targets import TargetError as TargetError
    from topologies.model.spec import TopologyError as TopologyError

# The imports above by module: they are for type checkers, these happen on use (PEP 562).
_NAMES = {
    "emulation.network.namespaces": "SandboxError",
    "hosts.client": "AsyncClient Client Joined Stall Sums",
    "hosts.errors": (
        "CallOrderError CheckpointError ClientError DoubleInitError JobRefusedError "
        "LeftBehindError NamespaceTakenError NoRoomError NoValueError PlanWithdrawnError "
        "PolicyError PriorityError ServiceUnavailableError StalledError TooLargeError "
        "UnknownKeyError UseAfterLeaveError WrongNonceError WrongShapeError WrongTypeError"
    ),
    "hosts.session.job_service": "Service",
    "observability.control": "ControlError",
    "observability.record": "RunError",
    "protocol.consistency": "Consistency",
    "protocol.errors": "Error",
    "protocol.optimizer_plan": "KeyOptions OptimizerPlan",
    "protocol.propagation": "Propagation",
    "protocol.learning_rate": "Schedule",
    "rackhub.results": "Iteration Result",
    "rackhub.running": "run",
    "rackhub.sweeping": "Sweep sweep",
    "rackhub.testbeds": "RunningJob Testbed up",
    "rackhub.topology": "Topology",
    "simulation.errors": "VirtualError",
    "specs.faultfile": "FaultsError",
    "specs.jobfile": "JobFileError",
    "specs.p4program": "DataPlaneError",
    "specs.sweepfile": "SweepFileError",
    "sweeps.errors": "SweepError",
    "testbed.errors": "JobError LaunchError",
    "testbed.targets": "TargetError",
    "topologies.model.spec": "TopologyError",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)  # type checkers read the imports above


if not TYPE_CHECKING:  # for whom there would be no wrong name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
