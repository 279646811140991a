# SPDX-License-Identifier: Apache-2.0
"""Tests checkpoints: round trip, corruption, and exact resumption with the optimizer at workers
and at a server, over real sockets."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hosts.client import Client
from hosts.data.checkpoint import MAGIC, Checkpoint, read, write
from hosts.data.snapshot import STARTED
from hosts.errors import CheckpointError, ClientError
from hosts.optimizers import Optimizer
from hosts.server.shards import Shards
from hosts.server.state import NotHereError, ServerState
from protocol.learning_rate import Schedule
from protocol.optimizer_plan import KeyOptions, OptimizerPlan
from protocol.plan import Address, ServerPlan
from tests.unit.client.small_client import ROOT, Server, create
from tests.unit.controller.small_service import LANES, SmallService

SMALL = Checkpoint(
    7,
    {"w": 3, "b": 1},
    2,
    bytes(range(18)),
    {"step": np.array(5), "mask": np.array([[True, False]]), "none": np.zeros((0, 4), np.float16)},
    "momentum",
    {"w": np.array([1, -0.0, np.nan], np.float32), "b": np.ones(1, np.float32)},
    ({"w": np.arange(3, dtype=np.float32), "b": np.zeros(1, np.float32)},),
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        equal = one.dtype == other.dtype and one.shape == other.shape
        return equal and one.tobytes() == other.tobytes()
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "x.checkpoint"
    write(path, SMALL)
    return path


def test_checkpoint_round_trip_leaves_no_other_files(file: Path) -> None:
    back = read(file)
    for name in Checkpoint.__dataclass_fields__:
        assert same(getattr(back, name), getattr(SMALL, name)), name
    write(file, replace(SMALL, calls=8))
    assert read(file).calls == 8
    assert list(file.parent.iterdir()) == [file]


def test_truncated_file_is_detected(file: Path) -> None:
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"x\.checkpoint: (cut off|no checkpoint)"):
            read(file)
    file.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match="damaged"):
        read(file)


def test_bit_flip_is_detected(file: Path) -> None:
    whole = file.read_bytes()
    for place in range(len(whole)):
        spoiled = bytearray(whole)
        spoiled[place] ^= 1 << place % 8
        file.write_bytes(spoiled)
        with pytest.raises(CheckpointError, match="damaged" if place >= len(MAGIC) else "no check"):
            read(file)


def test_non_checkpoint_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere: cannot be read: No such file"):
        read(tmp_path / "nowhere")
    np.savez(tmp_path / "weights.npz", a=np.ones(3))
    with pytest.raises(CheckpointError, match="no checkpoint: it begins with other bytes"):
        read(tmp_path / "weights.npz")
    os.mkfifo(tmp_path / "pipe")
    for endless in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(CheckpointError, match="no checkpoint: it is no regular file"):
            read(endless)
    blocked = tmp_path / "weights.npz" / "x"
    with pytest.raises(CheckpointError, match="cannot be written"):
        write(blocked, SMALL)


def test_failed_write_keeps_old_checkpoint(file: Path) -> None:
    odd = replace(SMALL, arrays={"names": np.array(["a"])})
    with pytest.raises(CheckpointError, match="application names is <U1, which is no type of num"):
        write(file, odd)
    assert read(file).calls == SMALL.calls


def test_checkpoint_of_other_job_is_detected_by_keys() -> None:
    SMALL.check_keys("f", {"w": 3, "b": 1})
    for keys, text in (
        ({"w": 3, "b": 2}, "f: of another job: b has 1 elements there, has 2 elements here"),
        ({"w": 3}, "b has 1 elements there, is not here"),
        ({"w": 3, "b": 1, "c": 9}, "c is not there, has 9 elements here"),
        ({"b": 1, "w": 3}, "its keys are in another order"),
    ):
        with pytest.raises(CheckpointError, match=text):
            SMALL.check_keys("f", keys)


def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    script = f"""
import numpy as np
from hosts.data.checkpoint import Checkpoint, write
for calls in range(1, 1000):
    write({str(path)!r}, Checkpoint(calls, {{}}, 1, b"", {{"a": np.full(1 << 20, calls)}}))
    print(calls, flush=True)
"""
    for kill_after in (1, 2, 3):
        command = [sys.executable, "-c", script]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            for _ in range(kill_after):
                written = int(process.stdout.readline())
            process.kill()
        found = read(path)
        assert found.calls >= written
        assert (found.arrays["a"] == found.calls).all()


# --- what servers hold ---

LANES_HERE = 4
WORKER, STRANGER = Address.of("10.0.0.1", 5000), Address.of("10.0.0.9", 5000)
PLAN = ServerPlan(
    job=1, epoch=3, world=1, lanes=LANES_HERE, rank=0, servers=(Address.of("10.0.1.1", 9),),
    workers=(WORKER,), windows={0: 2}, optimizer=OptimizerPlan("momentum", 0.5, 0.5), counts=(2,),
)  # fmt: skip


def test_servers_speak_of_checkpoints_with_the_jobs_workers_only() -> None:
    state = ServerState()
    state.install(PLAN)
    assert PLAN.optimizer is not None
    shards = state.shards(1, PLAN.optimizer, 2, LANES_HERE)
    every = np.arange(2)
    shards.start(every, np.ones((2, LANES_HERE), np.float32))
    snapshot = state.save(1, 3, WORKER.ipv4, every)
    for job, epoch, source, text in (
        (2, 3, WORKER, "job 2 is not in epoch 3 here"),
        (1, 2, WORKER, "job 1 is not in epoch 2 here"),
        (1, 3, STRANGER, r"nothing for 10\.0\.0\.9 here"),
    ):
        with pytest.raises(NotHereError, match=text):
            state.save(job, epoch, source.ipv4, every)
        with pytest.raises(NotHereError, match=text):
            state.load(job, epoch, source.ipv4, snapshot)
    with pytest.raises(NotHereError, match="job 1"):
        state.save(1, 3, WORKER.ipv4, np.array([5]))
    state.load(1, 3, WORKER.ipv4, snapshot)
    state.freeze(1)
    with pytest.raises(NotHereError, match="not in epoch"):
        state.load(1, 3, WORKER.ipv4, snapshot)


def test_state_is_taken_before_the_first_step_and_not_after_it() -> None:
    plan = OptimizerPlan("momentum", 0.5, 0.5)
    shards, every = Shards(plan, 2, LANES_HERE), np.arange(2)
    parameters = np.ones((2, LANES_HERE), np.float32)
    snapshot = replace(
        shards_of(plan, parameters).snapshot(every),
        state=np.full((1, 2, LANES_HERE), 3, np.float32),
    )
    with pytest.raises(KeyError, match="chunk 0 is not held"):
        shards.resume(snapshot)
    shards.start(every, parameters)
    shards.resume(snapshot)
    shards.step(every[:1], parameters[:1])
    expected = shards.snapshot(every)
    shards.resume(snapshot)  # once more, from another worker
    held = shards.snapshot(every)
    assert held.levels.tolist() == [STARTED + 1, STARTED]
    assert np.array_equal(held.state, expected.state)
    assert held.state[0, :, 0].tolist() == [0.5 * 3 + 1, 3]
    with pytest.raises(ValueError, match="chunk 1 began with parameters of another checkpoint"):
        shards.resume(replace(snapshot, parameters=parameters + 1))


def shards_of(plan: OptimizerPlan, parameters: np.ndarray) -> Shards:
    shards = Shards(plan, *parameters.shape)
    shards.start(np.arange(len(parameters)), parameters)
    return shards


# --- over sockets ---

WORLD, STEPS, SAVED = 2, 6, 3
MOST_CHANGES = 6
SHAPES = {"w": (7, 30), "b": (LANES + 1,)}
ADAM = OptimizerPlan(
    "adam", 0.1, keys=(KeyOptions("b", rate=0.3),), schedule=Schedule("cosine", steps=STEPS)
)


@pytest.fixture
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallService]:
    service = SmallService(tmp_path_factory.mktemp("s") / "jobs")
    yield service
    service.stop()


@pytest.fixture
def server(service: SmallService) -> Iterator[Server]:
    server = Server(service)
    yield server
    server.close()


def gradient(rank: int, step: int) -> dict[str, np.ndarray]:
    """With a large one in each key before the checkpoint: its scale is the next step's, too."""
    random = np.random.default_rng([rank, step])
    values = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()
    }
    if step == SAVED - 1:
        for one in values.values():
            one.flat[0] = 1e6
    return values


Trainer = Callable[[Client, int, Path | None, Path | None], bytes]


def at_server(client: Client, rank: int, load: Path | None, store: Path | None) -> bytes:
    begin = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    weights: Any = client.init_service(begin, optimizer=ADAM, restore=load)
    restored = client.restored
    for step in range(restored.calls if restored is not None else 0, STEPS):
        if step == SAVED and rank == 0 and store is not None:
            client.checkpoint(store)
        weights = client.push_pull(gradient(rank, step))
    return b"".join(one.tobytes() for one in weights.values())


def at_workers(client: Client, rank: int, load: Path | None, store: Path | None) -> bytes:
    weights = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    optimizer, first = Optimizer(ADAM, list(SHAPES)), 0

    def state() -> dict[str, np.ndarray]:
        kept = {f"kept {i}": one for i, one in enumerate(optimizer.state())}
        return {**weights, **kept}

    client.init_service(weights, state=state, restore=load)
    if client.restored is not None:
        first, arrays = client.restored
        weights = {name: arrays[name] for name in SHAPES}
        kept = [arrays[f"kept {i}"] for i in range(len(arrays) - len(SHAPES))]
        optimizer.restore(kept, first)
    for step in range(first, STEPS):
        if step == SAVED and rank == 0 and store is not None:
            client.checkpoint(store)
        means = client.push_pull(gradient(rank, step), average=True)
        optimizer.step(list(weights.values()), [means[name] for name in weights])
    return b"".join(one.tobytes() for one in weights.values())


def trained(
    service: SmallService,
    server: Server,
    trainer: Trainer,
    load: Path | None = None,
    store: Path | None = None,
) -> bytes:
    nonce = create(service, WORLD)
    assert server.command(f"join {nonce} 0").startswith("joined")

    def work(rank: int) -> bytes:
        with Client(service.address, address="127.0.0.1") as client:
            client.connect_service(nonce, rank)
            return trainer(client, rank, load, store)

    with ThreadPoolExecutor(WORLD) as pool:
        first, *others = list(pool.map(work, range(WORLD)))
    assert others == [first] * (WORLD - 1)
    return first


@pytest.mark.parametrize("trainer", [at_workers, at_server], ids=["workers", "server"])
def test_a_job_goes_on_from_a_checkpoint_to_the_last_bit(
    service: SmallService, server: Server, trainer: Trainer, tmp_path: Path
) -> None:
    path, later = tmp_path / "x", tmp_path / "y"
    whole = trained(service, server, trainer, store=path)
    assert read(path).calls == SAVED
    assert trained(service, server, trainer, load=path, store=later) == whole
    # What it writes in turn is what the first one wrote, but for rounds of its own.
    written, again = read(path), read(later)
    for name in ("calls", "keys", "lanes", "arrays", "optimizer", "parameters", "state"):
        assert same(getattr(again, name), getattr(written, name)), name
    # Without the scales of what went before, rounding is another.
    write(path, replace(written, exponents=bytes(len(written.exponents))))
    assert trained(service, server, trainer, load=path) != whole


def test_the_plan_may_change_while_servers_give_and_take_state(
    service: SmallService, server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    whole = trained(service, server, at_server, store=path)
    changes: list[str] = []
    # This service has no plan for who leaves while a change waits for him, so all leave together.
    finished = threading.Barrier(WORLD)

    def changing(client: Client, rank: int, load: Path | None, store: Path | None) -> bytes:
        """Epoch after epoch, each begun as soon as all run the one before."""
        nonce, job = list(service.jobs.items())[-1]
        over = threading.Event()

        def settled() -> bool:
            if over.is_set() or changes.count(nonce) == MOST_CHANGES:
                return True
            running = all(job.running.get(r) == job.epoch for r in job.ranks)
            return job.served == job.epoch and running

        def change() -> None:
            while not over.is_set() and changes.count(nonce) < MOST_CHANGES:
                service.wait_for(settled)
                if not over.is_set():
                    changes.append(nonce)
                    service.replan(nonce)

        thread = threading.Thread(target=change) if rank == 0 else None
        if thread is not None:
            thread.start()
        try:
            weights = at_server(client, rank, load, store)
            finished.wait(60)
            return weights
        finally:
            over.set()
            with service.changed:
                service.changed.notify_all()
            if thread is not None:
                thread.join(60)

    again = tmp_path / "y"
    assert trained(service, server, changing, store=again) == whole
    assert same(read(again).parameters, read(path).parameters)
    assert same(read(again).state, read(path).state)
    assert trained(service, server, changing, load=path) == whole
    assert len(set(changes)) == 2
    assert len(changes) > 2


def test_worker_at_unexpected_address_is_reported(
    service: SmallService, server: Server, tmp_path: Path
) -> None:
    nonce = create(service, 1)
    server.command(f"join {nonce} 0")
    # Calls leave from 127.0.0.1, as loopback has it.
    with Client(service.address, address="127.0.0.7") as client:
        client.connect_service(nonce, 0)
        client.init_service({"w": np.ones(5, np.float32)}, optimizer=OptimizerPlan("sgd", 0.1))
        client.push_pull({"w": np.ones(5, np.float32)})
        with pytest.raises(ClientError, match=r"nothing for 127\.0\.0\.1 here; calls to them must"):
            client.checkpoint(tmp_path / "x")


def test_checkpoint_waits_for_pushes(service: SmallService, server: Server, tmp_path: Path) -> None:
    path, world = tmp_path / "x", 2
    nonce = create(service, world)
    server.command(f"join {nonce} 0")
    one, other = (Client(service.address, address="127.0.0.1") for _ in range(world))
    with one, other, ThreadPoolExecutor(world) as pool:
        for rank, client in enumerate((one, other)):
            client.connect_service(nonce, rank)
        keys = {"w": 5}
        list(pool.map(lambda client: client.init_service(keys), (one, other)))
        values = {"w": np.ones(5, np.float16)}
        future = one.push(values)
        saved = pool.submit(one.checkpoint, path)
        other.push_pull(values)
        saved.result(60)
        assert future.done()
        assert read(path).calls == 1
        path.unlink()
        with pytest.raises(TimeoutError):
            one.push_pull(values, timeout=0.01)
        with pytest.raises(ClientError, match="an earlier call failed"):
            one.checkpoint(path)
        assert not path.exists()
        one.leave("its push failed")


def test_job_rejects_incompatible_checkpoint(
    service: SmallService, server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    trained(service, server, at_server, store=path)
    nonce = create(service, 1)
    keys = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    with Client(service.address, address="127.0.0.1") as client:
        client.connect_service(nonce, 0)
        with pytest.raises(CheckpointError, match="adam at servers; this one has sgd at servers"):
            client.init_service(keys, optimizer=OptimizerPlan("sgd", 0.1), restore=path)
        with pytest.raises(CheckpointError, match="this one has no optimizer at servers"):
            client.init_service(keys, restore=path)
        with pytest.raises(CheckpointError, match="of another job: w has 210 elements there"):
            client.init_service({"w": 5}, restore=path)
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(CheckpointError, match="cut off"):
            client.init_service(keys, optimizer=ADAM, restore=path)
