# SPDX-License-Identifier: Apache-2.0
"""Tests several jobs on the same servers and switches: isolation, and cleanup."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from controller.jobs.job import Job
from controller.planning.admission import Admission
from controller.planning.tree_planner import TreeKind
from hosts.client import Client
from hosts.errors import PlanWithdrawnError
from hosts.session.job_service import report_gone
from protocol import jobs_pb2
from protocol.optimizer_plan import OptimizerPlan
from tests.impaired_links import Impairments
from tests.packet.controller.controller_rig import state
from tests.packet.controller.loopback_rig import Loopback, loopback
from tests.packet.jobs.protocol_run import LIMIT, Run, network_of, start
from tests.packet.jobs.switched_network import SwitchedNetwork

pytestmark = pytest.mark.timeout(120)

WORKERS = ["w0", "w1"]
# Of 8192 slots at each switch: no two of these fit together.
LARGE = 4096


@pytest.fixture
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with loopback(tmp_path_factory.mktemp("j") / "jobs") as rig:
        yield rig


TENANTS: dict[str, dict[str, Any]] = {
    "large": {"kind": TreeKind.TWO_LEVEL, "window": LARGE},
    "no-room": {"kind": TreeKind.TWO_LEVEL, "window": LARGE, "admission": Admission.SERVERS},
    "steps": {
        "kind": TreeKind.NONE,
        "window": 4,
        "optimizer": OptimizerPlan("momentum", 0.1, 0.9, 1e-4),
    },
}


def tenant(network: SwitchedNetwork, name: str, kind: TreeKind, **options: Any) -> Run:
    """A job of six chunks, some of which go DIRECT."""
    started = start(network, "two racks", kind, 6, name=name, **options)
    return Run(started, 2, seed=sorted(TENANTS).index(name), odd=True)


def test_concurrent_jobs_get_same_results_as_alone() -> None:
    """All keys are named alike. One has no room in the switches, and is on its servers alone."""

    def results(names: list[str], seed: int) -> dict[str, np.ndarray]:
        network = network_of("two racks", seed, Impairments(0.05, 0.1, 0.05))
        try:
            runs = {name: tenant(network, name, **TENANTS[name]) for name in names}
            for number, run in enumerate(runs.values()):
                run.submit(skew=0.1, seed=number)
            assert network.run(lambda: all(run.done for run in runs.values()), LIMIT)
            for run in runs.values():
                run.check()
            if "no-room" in runs:
                alone = len(runs) == 1
                kind = TreeKind.TWO_LEVEL if alone else TreeKind.NONE
                assert runs["no-room"].started.job.scheme.kind is kind
            return {name: run.got for name, run in runs.items()}
        finally:
            network.close()

    together = results(list(TENANTS), seed=1)
    for name, got in together.items():
        assert results([name], seed=2)[name].tobytes() == got.tobytes()


def left(rig: Loopback) -> dict[str, Any]:
    """What there is of jobs in switches and servers."""
    resources = rig.table.resources
    return {
        "entries": state(rig.fabric),
        "slots": {name: budget.used for name, budget in resources.budgets.items()},
        "groups": {name: set(groups) for name, groups in resources._groups.items()},
        "jobs at servers": {name: one.state.jobs for name, one in rig.servers.items()},
        "parameters": {name: list(one.state._shards) for name, one in rig.servers.items()},
        "memberships": {name: list(one._memberships) for name, one in rig.servers.items()},
    }


def finish(rig: Loopback, nonce: str, clients: list[Client]) -> None:
    for client in clients:
        client.leave()


def give_up(rig: Loopback, nonce: str, clients: list[Client]) -> None:
    clients[0].leave("loss diverged")


def crash(rig: Loopback, nonce: str, clients: list[Client]) -> None:
    for rank in range(len(clients)):
        report_gone(rig.service, nonce, jobs_pb2.WORKER, rank, "was killed by SIGKILL")


def fall_silent(rig: Loopback, nonce: str, clients: list[Client]) -> None:
    """As if their heartbeats, and everybody's, did not come any more."""
    rig.table.jobs()[-1].lease = 0.0


@pytest.mark.parametrize("end", [finish, give_up, crash, fall_silent], ids=lambda one: one.__name__)
@pytest.mark.parametrize("where", ["switches", "servers"])
def test_a_job_leaves_nothing_behind_however_it_ends(
    rig: Loopback, where: str, end: Callable[[Loopback, str, list[Client]], None]
) -> None:
    before = left(rig)
    tree = "two-level" if where == "switches" else "none"
    nonce = Client.create_service(rig.service, "tenant", WORKERS, ["s0"], tree=tree).nonce
    rig.serve(nonce)
    clients = [Client(rig.service, address=rig.address(host)) for host in WORKERS]
    optimizer = OptimizerPlan("momentum", 0.1, 0.9) if where == "servers" else None

    def come(rank: int) -> None:
        clients[rank].connect_service(nonce, rank)
        clients[rank].init_service({"w": np.ones(1000, np.float32)}, optimizer=optimizer)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(come, range(2)))
    during = left(rig)
    held = {"entries", "slots", "groups"} if where == "switches" else {"parameters"}
    differs = {what for what in before if during[what] != before[what]}
    assert differs == held | {"jobs at servers", "memberships"}
    end(rig, nonce, clients)
    rig.wait_for(lambda: rig.table.jobs()[-1].state.over)
    rig.wait_for(lambda: left(rig) == before)
    for client in clients:
        client.leave("it is over")


def test_diverging_worker_calls_are_reported(
    rig: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hosts.session.membership.HEARTBEAT_SECONDS", 0.1)
    nonce = Client.create_service(rig.service, "order", WORKERS, ["s0"], tree="none").nonce
    rig.serve(nonce)
    ones = np.ones(3000, np.float32)

    def work(rank: int) -> str:
        with Client(rig.service, address=rig.address(WORKERS[rank])) as client:
            client.connect_service(nonce, rank)
            client.init_service(["x", "y"], [3000, 3000])
            client.push_pull({"x": ones, "y": ones})
            with pytest.raises(PlanWithdrawnError) as caught:
                client.push_pull({"y" if rank else "x": ones})
        return str(caught.value)

    with ThreadPoolExecutor(2) as pool:
        result = list(pool.map(work, range(2)))
    assert result[0] == result[1]
    assert (
        "all workers must push the same keys in the same order, and key 3 in that order is 'x' at"
        " worker 0 (w0), 'y' at worker 1 (w1)"
    ) in result[0]


def test_workers_that_split_their_calls_otherwise_are_in_order(
    rig: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is the order of keys; a slow worker is not one that differs."""
    monkeypatch.setattr("hosts.session.membership.HEARTBEAT_SECONDS", 0.02)
    nonce = Client.create_service(rig.service, "order", WORKERS, ["s0"], tree="none").nonce
    rig.serve(nonce)
    ones = np.ones(3000, np.float32)
    job: Job = rig.table.jobs()[-1]

    def waits_for(key: str) -> bool:
        return any(member.awaited[1] == key for member in job.members.values())

    clients = [Client(rig.service, address=rig.address(host)) for host in WORKERS]

    def come(rank: int) -> None:
        clients[rank].connect_service(nonce, rank)
        clients[rank].init_service(["x", "y"], [3000, 3000])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(come, range(2)))
    whole = [clients[0].push({"x": ones, "y": ones}) for _ in range(2)]
    for key in ("x", "y", "x", "y"):
        rig.wait_for(lambda key=key: waits_for(key))
        clients[1].push_pull({key: ones})
    assert all((one.result(60)["y"] == 2).all() for one in whole)
    for client in clients:
        client.leave()
