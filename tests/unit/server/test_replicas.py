# SPDX-License-Identifier: Apache-2.0
"""Tests primary and backup: no result leaves before the backup holds it; other senders are
rejected."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from queue import SimpleQueue

import grpc
import numpy as np
import pytest

from hosts.data.snapshot import to_message
from hosts.server.replicas import Peers, ShardServer
from hosts.server.state import NotHereError, ServerState, Update
from protocol import shards_pb2
from protocol.header import PORT, Batch, Flag, Op, blank, ops, peer_array
from protocol.optimizer_plan import OptimizerPlan
from protocol.payloads import float_words, floats_of, header_hashes, word_sums
from protocol.plan import Address, Child, RootStream, ServerPlan
from protocol.shards_pb2_grpc import ShardServiceStub

LANES = 4
WORKER = Address(10, 5000)
# As seen on loopback, where a caller of 127.0.0.1 is the first server.
SERVERS = (Address.of("127.0.0.1", PORT), Address.of("127.0.0.2", PORT))
PRIMARY = ServerPlan(
    job=1,
    epoch=3,
    world=1,
    lanes=LANES,
    rank=0,
    servers=SERVERS,
    workers=(WORKER,),
    windows={0: 2},
    roots=(RootStream(0, 9, 2, (Child(0, WORKER, 1, 0),)),),
    counts=(1, 1),  # the first is the primary's
    optimizer=OptimizerPlan("momentum", 0.5, 0.5),
)
BACKUP = replace(PRIMARY, rank=1)


def installed(plan: ServerPlan) -> ServerState:
    state = ServerState()
    state.install(plan)
    return state


def initial(parameters: list[float], seq: int = 0, chunk: int = 0) -> Batch:
    """A worker's initial parameters of a chunk, or a gradient that does not fit fixed point."""
    headers = blank(1, Op.CONTRIBUTE)
    fields = {"job": 1, "epoch": 3, "workers": 1, "lanes": LANES, "seq": seq, "chunk": chunk}
    for name, value in fields.items():
        headers[name] = value
    headers["flags"] = Flag.DIRECT | Flag.OVERFLOW
    words = float_words(np.array([parameters], np.float32))
    headers["checksum"] = word_sums(words) + header_hashes(headers)
    return Batch(headers, words, np.ones(1, np.bool_), peer_array([WORKER.pair()]))


def stepped(state: ServerState) -> Update:
    """The update that the primary has for its backup after initial parameters of 1, 2, 3, 4."""
    state.on_packets(0.0, initial([1, 2, 3, 4]))
    (update,) = state.take_updates()
    return update


def test_no_result_leaves_before_the_backup_holds_it() -> None:
    primary = installed(PRIMARY)
    update = stepped(primary)
    assert primary.poll(0.0)[0] is None
    # Sent again meanwhile, it is neither stepped again nor answered.
    primary.on_packets(0.0, initial([1, 2, 3, 4]))
    assert primary.poll(0.0)[0] is None
    assert not primary.has_updates
    primary.replicated(update)
    result, _ = primary.poll(0.0)
    assert result is not None
    assert ops(result.headers).tolist() == [Op.RESULT]
    assert floats_of(result.payloads).tolist() == [[1, 2, 3, 4]]
    assert result.headers["checksum"] == word_sums(result.payloads) + header_hashes(result.headers)
    # An acknowledgement that comes twice sends nothing twice.
    primary.replicated(update)
    assert primary.poll(0.0)[0] is None


def test_unreplicated_results_do_not_leave_in_next_epoch() -> None:
    primary = installed(PRIMARY)
    update = stepped(primary)
    primary.freeze(1)
    assert not primary.waits(update)
    primary.replicated(update)
    assert primary.poll(0.0)[0] is None
    # It is what the server reports, so it counts.
    assert np.frombuffer(primary.levels(1), "<u4").tolist() == [2, 0]


@pytest.mark.parametrize(
    ("job", "epoch", "source", "cause"),
    [
        (2, 3, SERVERS[0], "job 2 is not in epoch 3"),
        (1, 2, SERVERS[0], "job 1 is not in epoch 2"),
        (1, 3, SERVERS[1], "127.0.0.2 has no replica"),
        (1, 3, Address.of("127.0.0.3", PORT), "127.0.0.3 has no replica"),
    ],
)
def test_a_backup_takes_only_what_its_primary_has_stepped(
    job: int, epoch: int, source: Address, cause: str
) -> None:
    backup = installed(BACKUP)
    snapshot = stepped(installed(PRIMARY)).snapshot
    with pytest.raises(NotHereError, match=cause):
        backup.replicate(job, epoch, source.ipv4, snapshot)
    assert backup.levels(1) == b""
    backup.replicate(1, 3, SERVERS[0].ipv4, snapshot)
    backup.freeze(1)
    with pytest.raises(NotHereError, match="not in epoch 3"):
        backup.replicate(1, 3, SERVERS[0].ipv4, snapshot)


def test_a_moved_chunk_is_fetched_with_its_first_contribution_and_only_then() -> None:
    """The instruction that moves it may be repeated."""
    taker, giver = installed(PRIMARY), installed(BACKUP)
    giver.on_packets(0.0, initial([1, 2, 3, 4], chunk=1))
    moved = ((1, 0),)
    taker.own(1, 7, (), moved)
    assert not taker.has_updates
    taker.on_packets(0.0, initial([2, 2, 2, 2], seq=1, chunk=1))
    (task,) = taker.take_moves(2.0)
    assert not taker.take_updates()
    taker.moved(task, [giver.move(SERVERS[0].ipv4, task.to_message(1))], 3.5)
    ((job, message),) = taker.take_reports()
    report = message.moved_here
    # A parameter and a momentum of each lane.
    assert (job, report.number, report.chunks, report.bytes) == (1, 7, 1, 2 * 4 * LANES)
    assert report.seconds == 1.5
    assert not taker.has_reports
    (update,) = taker.take_updates()
    assert update.snapshot.levels.tolist() == [3]
    assert update.snapshot.parameters.tolist() == [[0, 1, 2, 3]]
    assert update.snapshot.state.tolist() == [[[2, 2, 2, 2]]]
    taker.replicated(update)
    taker.own(1, 7, (), moved)
    taker.on_packets(0.0, initial([0, 0, 0, 0], seq=2, chunk=1))
    assert not taker.take_moves(4.0)
    (update,) = taker.take_updates()
    assert update.snapshot.parameters.tolist() == [[-0.5, 0.5, 1.5, 2.5]]


@pytest.mark.parametrize(
    ("epoch", "source", "cause"),
    [
        (2, SERVERS[1], "not in epoch 2"),
        (3, SERVERS[0], "nothing for 127.0.0.1"),
        (3, Address.of("127.0.0.3", PORT), "nothing for 127.0.0.3"),
    ],
)
def test_parameters_move_only_to_servers_of_the_job(
    epoch: int, source: Address, cause: str
) -> None:
    primary = installed(PRIMARY)
    primary.on_packets(0.0, initial([1, 2, 3, 4]))

    def request(chunk: int, **changes: int) -> shards_pb2.FetchRequest:
        chunks = np.array([chunk], "<u4").tobytes()
        return shards_pb2.FetchRequest(
            **{"job": 1, "epoch": 3, "rank": 1, **changes}, chunks=chunks
        )

    with pytest.raises(NotHereError, match=cause):
        primary.move(source.ipv4, request(0, epoch=epoch))
    for rank in (0, 2, (1 << 32) - 1):
        with pytest.raises(NotHereError, match="nothing for"):
            primary.move(SERVERS[1].ipv4, request(0, rank=rank))
    assert primary.move(SERVERS[1].ipv4, request(0)).levels.tolist() == [2]
    with pytest.raises(NotHereError, match="job 1"):
        primary.move(SERVERS[1].ipv4, request(9))


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Desk:
    """The one thread that has a state machine."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def later(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join()


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.stop()


def serve(desk: Desk, backup: ServerState, address: Address) -> ShardServer:
    def nothing(*_: object) -> None:
        raise NotHereError("nothing to fetch")

    return ShardServer(
        address, desk.later, backup.replicate, nothing, backup.move, backup.save, backup.load
    )  # type: ignore[arg-type]


def test_an_update_reaches_a_backup_that_is_there_only_later(desk: Desk, unused_port: int) -> None:
    plan = replace(PRIMARY, servers=(SERVERS[0], Address.of("127.0.0.1", unused_port)))
    primary, backup = installed(plan), installed(replace(plan, rank=1))
    update = stepped(primary)
    held = threading.Event()
    peers = Peers(desk.later)
    peers.replicate(update, lambda: primary.waits(update), held.set)
    assert not held.wait(1.0), "no server was there to hold it"
    server = serve(desk, backup, update.backup)
    assert held.wait(60.0)
    peers.close()
    server.stop()
    assert np.frombuffer(backup.levels(1), "<u4").tolist() == [2, 0]


def test_unknown_peers_are_rejected(desk: Desk, unused_port: int) -> None:
    address = Address.of("127.0.0.1", unused_port)
    plan = replace(PRIMARY, servers=(Address.of("127.0.0.9", PORT), address), rank=1)
    backup = installed(plan)
    server = serve(desk, backup, address)
    good = to_message(1, 3, stepped(installed(PRIMARY)).snapshot)
    spoiled = shards_pb2.Shard.FromString(good.SerializeToString())
    spoiled.levels = b"\1\2"
    with grpc.insecure_channel(str(address), options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = ShardServiceStub(channel)
        for call, code in (
            (lambda: stub.Replicate(good), grpc.StatusCode.FAILED_PRECONDITION),
            (lambda: stub.Replicate(spoiled), grpc.StatusCode.INVALID_ARGUMENT),
            (
                lambda: list(stub.Fetch(shards_pb2.FetchRequest(job=1, epoch=3))),
                grpc.StatusCode.FAILED_PRECONDITION,
            ),
            (
                lambda: list(stub.Move(shards_pb2.FetchRequest(job=1, epoch=3))),
                grpc.StatusCode.PERMISSION_DENIED,
            ),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                call()
            assert refused.value.code() is code
    server.stop()
    assert backup.levels(1) == b""
