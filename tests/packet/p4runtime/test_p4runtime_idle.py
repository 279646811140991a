# SPDX-License-Identifier: Apache-2.0
"""Tests idle timeouts over P4Runtime, with a manual clock."""

import time

import pytest
from google.rpc import code_pb2 as code

from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.packet.p4runtime.p4rt_learning import SECOND, Learner, bare, number, source
from tests.packet.p4runtime.p4rt_support import DELETE, INSERT, MODIFY

HOST, OTHER = 0x0200_0000_00AA, 0x0200_0000_00BB


@pytest.fixture
def learner():
    learner = Learner()
    yield learner
    learner.device.close()


def timed(address, seconds, **fields):
    return source(address, idle_timeout_ns=int(seconds * SECOND), **fields)


def idle(learner):
    """Entries that were reported as idle, since the last call."""
    message = learner.take("idle_timeout_notification")
    assert all(len(one.table_entry) for one in message)
    return [entry for one in message for entry in one.table_entry]


def test_idle_entry_is_notified_once_per_timeout(learner):
    before = time.time_ns()
    entry = timed(HOST, 2, controller_metadata=7, metadata=b"cookie")
    learner.write((INSERT, entry), (INSERT, timed(OTHER, 0)))
    assert learner.wait(1.9) == pytest.approx(0.1)
    assert idle(learner) == []
    assert learner.wait(0.1) == 2
    [message] = learner.take("idle_timeout_notification")
    assert before <= message.timestamp <= time.time_ns()
    expected = bare(HOST, idle_timeout_ns=2 * SECOND, controller_metadata=7, metadata=b"cookie")
    assert list(message.table_entry) == [expected]
    learner.wait(1.9)
    assert idle(learner) == []
    learner.wait(0.1)
    assert idle(learner) == [expected]


def test_table_hit_resets_idle_timeout(learner):
    learner.write((INSERT, timed(HOST, 2)), (INSERT, timed(OTHER, 3)))
    learner.wait(1.5)
    learner.arrives(HOST)
    learner.wait(1.9)  # 3.4
    assert [one.match for one in idle(learner)] == [bare(OTHER).match]
    learner.arrives(HOST)
    learner.wait(2)
    assert [one.match for one in idle(learner)] == [bare(HOST).match]
    asked = bare(HOST, time_since_last_hit={})
    [found] = learner.read(asked)
    assert found.time_since_last_hit.elapsed_ns == 2 * SECOND
    assert found.idle_timeout_ns == 2 * SECOND
    assert not learner.read(bare(HOST))[0].HasField("time_since_last_hit")


def test_modify_and_delete_affect_idle_timeout(learner):
    learner.write((INSERT, timed(HOST, 1)), (INSERT, timed(OTHER, 1)))
    learner.wait(0.5)
    learner.write((DELETE, bare(OTHER)), (MODIFY, timed(HOST, 4)))
    assert learner.wait(3.9) == pytest.approx(0.1)
    assert idle(learner) == []
    learner.wait(0.1)
    assert len(idle(learner)) == 1
    learner.write((MODIFY, source(HOST)))
    assert learner.read(bare(HOST)) == [source(HOST)]
    assert learner.wait(10) is None
    assert idle(learner) == []
    [found] = learner.read(bare(HOST, time_since_last_hit={}))
    assert found.time_since_last_hit.elapsed_ns == 10 * SECOND


def test_the_shortest_timeout_is_ten_milliseconds(learner):
    learner.write((INSERT, source(HOST, idle_timeout_ns=1)))
    assert learner.read(bare(HOST))[0].idle_timeout_ns == 1
    assert learner.wait(0) == 0.01
    learner.wait(0.01)
    assert len(idle(learner)) == 1


def test_many_entries_that_come_and_go_leave_nothing(learner):
    ageing = learner.device._committed._ageing
    for address in range(1200):
        learner.write((INSERT, timed(address, 60)), (DELETE, bare(address)))
    assert len(ageing._heap) < 1100
    learner.write((INSERT, timed(HOST, 60)))
    learner.wait(60)
    assert len(idle(learner)) == 1


def default(**fields):
    table = number("tables", "sources")
    return p4rt.TableEntry(table_id=table, is_default_action=True, **fields)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (INSERT, source(HOST, idle_timeout_ns=-1)),
        (INSERT, source(HOST, time_since_last_hit={})),
        (MODIFY, default(idle_timeout_ns=5)),
    ],
)
def test_invalid_input_is_rejected(learner, kind, message):
    assert learner.refusal((kind, message)) == code.INVALID_ARGUMENT


def test_unsupported_idle_timeouts_are_rejected(learner):
    assert learner.read_refusal(default(time_since_last_hit={})) == code.INVALID_ARGUMENT
