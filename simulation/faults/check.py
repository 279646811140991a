# SPDX-License-Identifier: Apache-2.0
"""Reads fault files for virtual time, and checks that their faults have something to hit."""

from __future__ import annotations

from pathlib import Path

from specs import fault_schedule, faultfile
from specs.faultfile import Fault, FaultsError
from testbed.preflight import Preflight
from topologies.model.documents import errors_as


def scheduled(file: Path, checked: Preflight, seed: int | None = None) -> list[Fault]:
    """Returns the faults of a file for jobs that passed ``check``.

    seed: of random faults, instead of the file's. Raises ``FaultsError``.
    """
    document = faultfile.load(file)
    job = checked.jobs[0].file if checked.jobs else None
    found = fault_schedule.schedule(document, checked.topology, seed, job=job)
    for fault in found:
        needed = _needed(fault, checked) if fault.kind == "slow" and fault.node else ""
        if needed:
            document.refuse((*fault.place, "host"), needed)
    with errors_as(FaultsError):
        document.check()
    return found


def _needed(fault: Fault, checked: Preflight) -> str:
    """Returns what a slow host lacks that takes time there; empty if there is something."""
    topology, costs = checked.topology, checked.topology.costs
    serves = costs.server_rate is not None
    if topology.by_name[fault.node].kind != "worker":
        if serves:
            return ""
        return (
            f"{fault.node} takes no time for what it does, so nothing can be slow there; give"
            " `costs: {server_rate: ...}` in the topology"
        )
    computes = any(
        plan.file.compute_seconds for plan in checked.jobs if fault.node in plan.placement.workers
    )
    if computes or costs.host_per_packet or costs.host_per_byte or serves:
        return ""
    return (
        f"{fault.node} takes no time for what it does, so nothing can be slow there; give `costs:"
        " {host_per_packet: ..., host_per_byte: ...}` in the topology, or `compute` in the job"
    )
