# SPDX-License-Identifier: Apache-2.0
"""Tests concurrent calls of a worker, and joins and departures meanwhile."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import grpc
import numpy as np
import pytest

from hosts.client import Client, Sums
from hosts.client.asynchronous import AsyncClient
from hosts.data.keys import declared
from hosts.data.tensors import DTYPES, Tensors
from hosts.errors import (
    CallOrderError,
    PlanWithdrawnError,
    UseAfterLeaveError,
    WrongShapeError,
    WrongTypeError,
)
from hosts.worker.round_barrier import RoundBarrier, Rounds
from protocol import jobs_pb2
from tests.unit.client.small_client import (
    KEYS,
    Server,
    create,
    gradients,
    in_parallel,
    server,
    service,
    stuck,
)
from tests.unit.client.test_client_joins import Trainer, crew, nonce_of, together
from tests.unit.controller.small_service import SmallService

__all__ = ["server", "service"]  # fixtures


def ones(value: float = 1.0) -> dict[str, np.ndarray]:
    return {"b": np.full(30, value, np.float32)}


def test_concurrent_pushes_equal_sequential_ones(service: SmallService, server: Server) -> None:
    """Layer by layer and round after round, without waiting for any, and in one call each; from
    arrays that change right after a push, that stay as they are, and that are not contiguous."""
    world, rounds = 2, 6
    values = gradients(world, rounds, seed=3)

    def at_once(client: Client, rank: int) -> list[dict[str, np.ndarray]]:
        def pushed(name: str, value: np.ndarray) -> Future[Sums]:
            if name == "b":
                return client.push({name: value}, copy=False)
            mine = value.copy()
            future = client.push({name: mine})
            mine.fill(np.nan)
            return future

        pushes = [
            {name: pushed(name, mine[name]) for name in reversed(KEYS)} for mine in values[rank]
        ]
        wait([future for one in pushes for future in one.values()], timeout=50)
        last = client.pull()
        for name in KEYS:
            assert last[name] is pushes[-1][name].result()[name]
            assert last.workers[name].tolist() == [world] * len(last.workers[name])
        assert last.members == {world: (0, 1)}
        return [{name: one[name].result()[name] for name in KEYS} for one in pushes]

    def one_by_one(client: Client, rank: int) -> list[Sums]:
        return [
            client.push_pull({name: np.asfortranarray(array) for name, array in mine.items()})
            for mine in values[rank]
        ]

    got = []
    for work in (at_once, one_by_one):
        nonce = create(service, world)
        server.command(f"join {nonce} 0")
        got += in_parallel(service, nonce, world, work)
    for sums in got[1:]:
        for mine, right in zip(sums, got[0], strict=True):
            for name in KEYS:
                assert mine[name].tobytes() == right[name].tobytes()


def test_statistics_lose_no_count_when_another_thread_reads_them(
    service: SmallService, server: Server
) -> None:
    rounds = 1500
    values = gradients(1, 1, seed=4)[0][0]

    def work(client: Client, rank: int) -> None:
        done = threading.Event()
        seen = [client.chunks_done]

        def look() -> None:
            while not done.wait(1e-5):
                seen.append(client.chunks_done)

        looker = threading.Thread(target=look)
        looker.start()
        try:
            first = sum(map(len, client.push_pull(values).workers.values()))
            for number in range(2, rounds + 1):
                client.push_pull(values)
                assert client.chunks_done == number * first
        finally:
            done.set()
            looker.join()
        assert seen == sorted(seen)
        assert len(seen) > 10

    nonce = create(service, 1)
    server.command(f"join {nonce} 0")
    in_parallel(service, nonce, 1, work)


def test_sums_come_into_given_arrays_bit_for_bit(service: SmallService, server: Server) -> None:
    """Into the gradients' own, too; and wrong arrays are refused before anything is sent."""
    values = gradients(2, 4, seed=5)

    def apart(client: Client, rank: int) -> list[dict[str, np.ndarray]]:
        means = client.push_pull(values[rank][3], average=True)
        return [dict(means), *(dict(client.push_pull(one)) for one in values[rank][:3])]

    def into(client: Client, rank: int) -> list[dict[str, np.ndarray]]:
        first, second, third, last = (
            {name: array.copy() for name, array in one.items()} for one in values[rank]
        )
        for error, says, wrong in (
            (KeyError, "'v' is not among the keys of this call: w, b, big", {"v": first["w"]}),
            (TypeError, "out of w: a float32 array is needed, this is float64", {"w": np.ones(9)}),
            (TypeError, "out of w: a float32 array is needed, this is list", {"w": [1.0]}),
            (ValueError, r"out of w: shape \(7, 30\) is needed, given \(30,\)", {"w": first["b"]}),
            (TypeError, "this is not C-contiguous", {"w": np.empty((30, 7), np.float32).T}),
        ):
            with pytest.raises(error, match=says):
                client.push(first, out=wrong)
        first["b"].flags.writeable = False
        with pytest.raises(TypeError, match=r"out of b: .* this is read-only"):
            client.push(first, out={"b": first["b"]})
        means = client.push_pull(last, average=True, out=last)
        assert all(means[name] is last[name] for name in KEYS)
        some = {"big": np.empty(KEYS["big"], np.float32)}
        sums = client.push_pull(first, out=some)
        assert sums["big"] is some["big"]
        listed = client.all_reduce(second.values(), out=second.values())
        assert all(one is second[name] for name, one in zip(KEYS, listed, strict=True))
        pushed = client.push(third).result(50)
        pulled = {name: np.empty(shape, np.float32) for name, shape in KEYS.items()}
        with pytest.raises(ValueError, match=r"out of w: shape \(7, 30\) is needed"):
            client.pull(out={"w": pulled["b"]})
        with pytest.raises(KeyError, match="'b' is not among the keys of this call: w"):
            client.pull(["w"], out={"b": pulled["b"]})
        assert client.pull(["b", "w"], out={"w": pulled["w"]})["b"] is pushed["b"]
        got = client.pull(out=pulled)
        assert all(got[name] is pulled[name] for name in KEYS)
        assert got.workers["w"].tolist() == pushed.workers["w"].tolist()
        return [last, dict(sums), second, pulled]

    got = []
    for work in (apart, into):
        nonce = create(service, 2)
        server.command(f"join {nonce} 0")
        got += in_parallel(service, nonce, 2, work)
    for sums in got[1:]:
        for mine, right in zip(sums, got[0], strict=True):
            for name in KEYS:
                assert mine[name].tobytes() == right[name].tobytes()


def test_doubles_are_summed_as_float32_in_asyncio_too(
    service: SmallService, server: Server
) -> None:
    nonce = create(service, 1)
    server.command(f"join {nonce} 0")
    values, out = np.linspace(-1, 1, 30), np.empty(30, np.float32)

    async def work() -> None:
        async with AsyncClient(service.address, address="127.0.0.1") as client:
            await client.connect_service(nonce, 0)
            await client.init_service({"b": values})
            with pytest.raises(OverflowError, match=r"b: 1e\+60 is beyond float32"):
                await client.push({"b": 1e60 * values})
            sums = await client.push_pull({"b": values}, out={"b": out})
            assert sums["b"] is out
            again = np.empty_like(out)
            assert (await client.pull(out={"b": again}))["b"] is again
            assert again.tobytes() == out.tobytes()
            (reduced,) = await client.all_reduce([values], out=[again])
            assert reduced is again

    with pytest.warns(UserWarning, match="b: float64 is summed as float32") as warned:
        asyncio.run(work())
    assert len(warned) == 1
    # A job of one worker: its sum is what it pushed, in fixed point relative to the largest, 1.
    np.testing.assert_allclose(out, values, rtol=0, atol=2**-24)


def test_in_asyncio_a_cancelled_task_takes_no_push_back_and_leaving_is_for_good(
    service: SmallService, server: Server
) -> None:
    world = 2
    nonce = create(service, world)
    server.command(f"join {nonce} 0")

    async def work(rank: int) -> list[float]:
        async with AsyncClient(service.address, address="127.0.0.1") as client:
            await client.connect_service(nonce, rank)
            await client.init_service({"b": 30})
            tasks = [asyncio.create_task(client.push_pull(ones(value))) for value in (1, 2, 4)]
            await asyncio.sleep(0)  # all have begun, and two of them wait for the first
            if rank == 0:
                tasks[1].cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            await client.leave()
            with pytest.raises(UseAfterLeaveError):
                await client.push(ones())
            await client.leave()
        return [one["b"][0] for one in done if isinstance(one, dict)]

    with ThreadPoolExecutor(world) as pool:
        got = list(pool.map(lambda rank: asyncio.run(work(rank)), range(world)))
    assert got == [[2, 8], [2, 4, 8]]


def test_futures_complete_in_background(service: SmallService, server: Server) -> None:
    _, client, other = stuck(service, server)
    messages: list[Any] = []
    there = threading.Event()

    def note(future: Future[Sums]) -> None:
        for call in (lambda: client.push(ones()), client.pull, client.leave):
            try:
                call()
            except CallOrderError as error:
                messages.append(str(error))
        messages.append(future.result()["b"][0])
        there.set()

    future = client.push(ones())
    future.add_done_callback(note)
    assert not future.cancel()
    assert not future.done()
    assert other.push(ones(2)).result(20)["b"][0] == 3
    # No call of this client is needed for its own to be done.
    assert there.wait(60)
    assert messages[-1] == 3
    assert len(messages) == 4
    assert all("callback makes no calls" in text for text in messages[:3])
    waiting = client.push(ones())
    with pytest.raises(TimeoutError):
        client.pull(["b"], timeout=0.05)
    other.push(ones())
    assert waiting.result(60)["b"][0] == client.pull()["b"][0] == 2
    client.leave()
    other.leave()


def test_leaving_waits_for_pushes_and_giving_up_does_not(
    service: SmallService, server: Server
) -> None:
    nonce, client, other = stuck(service, server)
    future = client.push(ones())
    with ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(client.leave)
        other.push_pull(ones())
        leaving.result(60)
    assert future.result()["b"][0] == 2
    # What is over can be read.
    assert (client.job, client.epoch, client.world, client.joined) == (1, 1, 2, None)
    statistics = client.statistics
    assert (statistics["completed"], statistics["sent"]) == (1, 2)
    assert statistics["socket"]["sent"] >= 2
    lonely = other.push(ones())
    other.leave("no more memory")
    with pytest.raises(UseAfterLeaveError):
        lonely.result(0)
    left = [(rank, reason) for _, rank, reason in service.jobs[nonce].left]
    assert left == [(0, ""), (1, "no more memory")]


def test_the_end_of_a_job_reaches_all_pushes(service: SmallService, server: Server) -> None:
    nonce, client, other = stuck(service, server)
    pushes = [client.push(ones()) for _ in range(3)]
    service.end(nonce, grpc.StatusCode.ABORTED, "w1 gave up")
    for push in pushes:
        assert isinstance(push.exception(60), PlanWithdrawnError)
    client.leave()
    other.leave()


class Layers(Trainer):
    """Pushes its keys one by one, and has two calls for each step."""

    def step(self) -> None:
        pushes: dict[str, Future[Sums]] = {}
        for name, weights in reversed(self.weights.items()):
            draw = np.random.default_rng([self.rank, self.steps, len(name)])
            gradient = draw.standard_normal(weights.shape).astype(np.float32)
            pushes[name] = self.client.push({name: gradient}, average=True)
        for name, push in pushes.items():
            self.weights[name] += push.result(50)[name]
        self.steps += 1
        self.workers.append({n for p in pushes.values() for n in p.result().members})
        self.members.append({})


def test_joins_happen_between_rounds_of_calls(
    service: SmallService, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.client.test_client_joins.Trainer", Layers)
    trainers = crew(service, server, 3)
    first, dead, last = trainers
    assert isinstance(first, Layers)
    nonce = nonce_of(service)
    with ThreadPoolExecutor(4) as pool:
        for done in together(pool, trainers, 5):
            done.result(60)
        service.replan(nonce, lost=1)
        others = together(pool, [first, last], 30)
        back = Layers(service, nonce, 1)
        back.init()
        for done in [*others, *together(pool, [back], 30)]:
            done.result(60)
    # All count their keys alike, by which the job service finds out who differs.
    assert (
        len({trainer.client._part.follower.barrier.pushed for trainer in (first, back, last)}) == 1
    )
    joined_at = back.steps - len(back.workers)
    assert 5 <= joined_at <= 30
    for trainer in (first, back, last):
        assert trainer.weights["w"].tobytes() == first.weights["w"].tobytes()
        assert trainer.weights["b"].tobytes() == first.weights["b"].tobytes()
        trainer.client.leave()
    assert first.workers[joined_at:] == [{3}] * (30 - joined_at)
    assert all(len(one) == 1 for one in first.workers)
    dead.client.leave()


def test_rounds_are_calls_until_a_key_comes_again() -> None:
    barrier = RoundBarrier()
    rounds = Rounds(barrier, keys=3)
    assert [rounds.begin([2]), rounds.begin([1]), rounds.begin([2])] == [1, 1, 2]
    assert barrier.pushed == 3
    rounds.complete(2)
    assert barrier.completed == 0  # the first one is under way
    rounds.complete(1)
    rounds.complete(1)
    assert barrier.completed == 1  # the second may go on
    barrier.on_boundary(jobs_pb2.Boundary(number=7))
    assert [a.begun.calls for a in barrier.take_answers()] == [2]
    barrier.on_boundary(jobs_pb2.Boundary(number=7, until=2))
    assert rounds.begin([0, 1]) == 2  # all keys: nothing more can come
    assert barrier.take_answers() == []
    rounds.complete(2)
    assert [a.reached.number for a in barrier.take_answers()] == [7]
    assert rounds.begin([0]) is None
    barrier.release()
    assert rounds.begin([0]) == 3
    barrier.on_boundary(jobs_pb2.Boundary(number=8, until=3))
    rounds.complete(3)
    assert barrier.completed == 2  # calls may still come
    assert rounds.begin([0]) is None  # and this one would be of another
    assert [a.reached.number for a in barrier.take_answers()] == [8]


def test_asyncio_state_callback_runs_in_event_loop(service: SmallService, server: Server) -> None:
    nonce = create(service, 2)
    server.command(f"join {nonce} 0")
    asked: list[bool] = []

    async def stay(client: AsyncClient, until: threading.Event) -> None:
        loop = asyncio.get_running_loop()

        def state() -> dict[str, np.ndarray]:
            asked.append(asyncio.get_running_loop() is loop)
            return {}

        async with client:
            await client.connect_service(nonce, 0)
            await client.init_service({"b": 30}, state=state)
            await client.push_pull(ones())
            service.replan(nonce, lost=1)
            while not until.is_set():
                await client.push_pull(ones())

    def come(work: Any) -> Client:
        client = Client(service.address, address="127.0.0.1")
        client.connect_service(nonce, 1)
        client.init_service({"b": 30})
        work(client)
        return client

    joined = threading.Event()

    def again(client: Client) -> None:
        assert client.joined is not None
        joined.set()
        client.push_pull(ones())

    with ThreadPoolExecutor(1) as pool:
        staying = pool.submit(
            asyncio.run, stay(AsyncClient(service.address, address="127.0.0.1"), joined)
        )
        dead = come(lambda client: client.push_pull(ones()))
        service.wait_for(lambda: 1 in service.jobs[nonce].lost)
        come(again).leave()
        staying.result(40)
        dead.leave()
    assert set(asked) == {True}


def test_keys_by_shape_and_dtype() -> None:
    array = np.ones((2, 3), np.float32)
    found = declared(["a", "b"], [(2, 3), 4], np.float32)
    assert {name: (np.shape(key), key.dtype) for name, key in found.items()} == {
        "a": ((2, 3), np.float32),
        "b": ((4,), np.float32),
    }
    assert declared({"a": array}, {"a": (2, 3)}, ["float32"])["a"] is array
    for name in DTYPES:
        key = declared(["a"], [4], name)["a"]
        assert isinstance(key, np.ndarray)
        assert key.dtype.name == name
        assert Tensors({"a": key}, 2).sizes == {"a": 4}
    assert declared({"a": 6, "b": array}, None, None) == {"a": 6, "b": array}
    for keys, shapes, dtypes, error, says in (
        (["a"], None, None, WrongShapeError, "a: has no shape"),
        ({}, None, None, WrongShapeError, "no keys; a job has at least one"),
        ({"a": 1, "": 1}, None, None, WrongShapeError, "a key without a name"),
        ({"a": 0}, None, None, WrongShapeError, "a: 0 is neither an array nor a number"),
        ({"a": 1.5}, None, None, WrongShapeError, "a: 1.5 is neither an array nor a number"),
        ({"a": True}, None, None, WrongShapeError, "a: True is neither an array nor a number"),
        ({"a": np.zeros((0, 3))}, None, None, WrongShapeError, r"a: an array of shape \(0, 3\)"),
        (["a", "a"], [1, 1], None, WrongShapeError, "a: named twice"),
        (["a"], [1, 2], None, WrongShapeError, "2 shapes for 1 keys"),
        (["a"], {"b": 1}, None, WrongShapeError, "shapes of b, which is no key"),
        (["a"], [(2, 0)], None, WrongShapeError, "a: a key has at least one element"),
        (["a"], ["large"], None, WrongShapeError, "a: 'large' is no shape"),
        (["a"], [1], "large", WrongTypeError, "a: 'large' is no dtype"),
        ({"a": array}, [(3, 2)], None, WrongShapeError, r"a: declared with shape \(3, 2\)"),
        ({"a": array}, None, np.float64, WrongTypeError, "a: declared as float64, given float32"),
    ):
        with pytest.raises(error, match=says):
            declared(keys, shapes, dtypes)  # type: ignore[arg-type]
