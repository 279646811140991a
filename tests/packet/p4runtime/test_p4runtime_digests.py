# SPDX-License-Identifier: Apache-2.0
"""Tests digests over P4Runtime: when lists are sent, deduplication, and losses."""

import pytest
from google.rpc import code_pb2 as code

from switch.loader import load_program
from switch.p4runtime.errors import P4RuntimeError
from switch.p4runtime.p4info.values import MessageCodec
from switch.p4runtime.stubs import p4data_pb2, p4types_pb2
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from switch.pipeline import Pipeline
from switch.pipeline.meters_and_digests import DIGEST_ROOM, Externs
from tests.packet.p4runtime.p4rt_learning import (
    JSON_PATH,
    Learner,
    config,
    digest,
    frame,
    learned,
    number,
    source,
)
from tests.packet.p4runtime.p4rt_support import DELETE, INSERT, MODIFY, arbitration, config_request


@pytest.fixture
def learner():
    learner = Learner()
    yield learner
    learner.device.close()


def arrivals(learner, addresses):
    for address in addresses:
        learner.arrives(address)


def test_a_list_is_sent_when_it_is_full_or_old_enough(learner):
    learner.write((INSERT, digest(size=3, timeout=2, ack=60)))
    arrivals(learner, [1, 2, 1, 2])
    assert learner.take("digest") == []
    assert learner.wait(0) == 2
    arrivals(learner, [3, 4])
    [full] = learner.take("digest")
    assert learned(full) == [(1, 1), (2, 1), (3, 1)]
    assert (full.digest_id, full.list_id) == (number("digests", "learned_t"), 1)
    assert learner.wait(1.5) == 0.5
    assert learner.take("digest") == []
    learner.wait(0.5)
    [old] = learner.take("digest")
    assert (learned(old), old.list_id) == ([(4, 1)], 2)
    assert old.timestamp > full.timestamp > 0


@pytest.mark.parametrize("between", ["disabled", "reconciled"])
def test_a_late_acknowledgement_is_of_no_list_that_came_after(learner, between):
    settings = digest(size=1, timeout=1, ack=10)
    learner.write((INSERT, settings))
    arrivals(learner, [1])
    [old] = learner.take("digest")
    if between == "disabled":
        learner.write((DELETE, digest()), (INSERT, settings))
    else:
        changed = config()
        changed.p4_device_config += b" "
        learner.device.set_forwarding_pipeline_config(
            config_request("RECONCILE_AND_COMMIT", changed)
        )
    arrivals(learner, [1])
    [new] = learner.take("digest")
    assert new.list_id != old.list_id
    learner.acknowledge(old)
    arrivals(learner, [1])
    assert learner.take("digest") == []
    learner.acknowledge(new)
    arrivals(learner, [1])
    assert len(learner.take("digest")) == 1


def test_nothing_is_sent_twice_until_it_is_acknowledged(learner):
    learner.write((INSERT, digest(size=1, timeout=1, ack=10)))
    arrivals(learner, [1, 1, 2, 1])
    first, second = learner.take("digest")
    assert [learned(first), learned(second)] == [[(1, 1)], [(2, 1)]]
    learner.acknowledge(first)
    learner.acknowledge(first)
    arrivals(learner, [1, 2])
    [again] = learner.take("digest")
    assert learned(again) == [(1, 1)]
    # A client that does not answer is notified again when ack_timeout_ns is over.
    learner.wait(9)
    arrivals(learner, [1, 2])
    assert learner.take("digest") == []
    assert learner.wait(0) == 1
    learner.wait(1)
    arrivals(learner, [1, 2])
    assert [learned(one) for one in learner.take("digest")] == [[(1, 1)], [(2, 1)]]


def test_without_ack_timeout_everything_is_sent(learner):
    learner.write((INSERT, digest(size=0, timeout=0, ack=0)))
    arrivals(learner, [1, 1, 2])
    assert [learned(one) for one in learner.take("digest")] == [[(1, 1)], [(1, 1)], [(2, 1)]]
    assert learner.wait(0) is None


def test_the_last_digest_of_a_packet_counts(learner):
    learner.write((INSERT, digest(timeout=0)), (INSERT, digest("odd_t", timeout=0)))
    learner.arrives(1, kind=0x8000 | 0x4007)  # which is dropped
    [odd] = learner.take("digest")
    assert odd.digest_id == number("digests", "odd_t")
    assert [one.bitstring for one in odd.data[0].struct.members] == [
        b"\x07", b"\xab\xcd\xef", b"\x01",
    ]  # fmt: skip


def test_known_digests_are_not_sent_again(learner):
    learner.write((INSERT, digest(timeout=0)), (INSERT, source(1)))
    arrivals(learner, [1, 2])
    assert [learned(one) for one in learner.take("digest")] == [[(2, 1)]]


def test_configurations(learner):
    assert learner.read(p4rt.DigestEntry()) == []
    assert learner.read_refusal(digest()) == code.NOT_FOUND
    assert learner.refusal((MODIFY, digest())) == code.NOT_FOUND
    assert learner.refusal((DELETE, digest())) == code.NOT_FOUND
    arrivals(learner, [1])
    learner.write((INSERT, digest(size=5, timeout=1, ack=2)))
    assert learner.refusal((INSERT, digest())) == code.ALREADY_EXISTS
    assert learner.refusal((MODIFY, digest(size=-1))) == code.INVALID_ARGUMENT
    assert learner.refusal((MODIFY, digest(ack=-1))) == code.INVALID_ARGUMENT
    assert learner.read(p4rt.DigestEntry()) == [digest(size=5, timeout=1, ack=2)]
    arrivals(learner, [2, 3])
    learner.write((MODIFY, digest(size=2, timeout=1, ack=2)))
    learner.wait(0)
    [message] = learner.take("digest")
    assert learned(message) == [(2, 1), (3, 1)]  # not 1: it had no subscriber then
    arrivals(learner, [4])
    learner.write((DELETE, digest()))
    learner.wait(10)
    assert learner.take("digest") == []
    # What was not acknowledged, or waited, is forgotten with it.
    learner.write((INSERT, digest(size=1, timeout=1, ack=2)))
    learner.acknowledge(message)
    arrivals(learner, [2, 4])
    assert [learned(one) for one in learner.take("digest")] == [[(2, 1)], [(4, 1)]]


def test_new_primary_gets_pending_digests(learner):
    learner.write((INSERT, digest(size=2, timeout=1, ack=60)))
    learner.stream.close()
    arrivals(learner, [1, 2, 3])
    assert learner.wait(5) is None
    learner.stream = learner.device.open_stream(learner.received.append)
    learner.stream.receive(arbitration((0, 5)))
    learner.received.clear()
    learner.wait(0)
    assert [learned(one) for one in learner.take("digest")] == [[(1, 1), (2, 1)], [(3, 1)]]


def test_messages_that_find_no_room_are_lost_and_counted():
    name = "learned_t"
    with Pipeline(load_program(JSON_PATH), 64) as pipeline:
        externs = Externs(pipeline)
        frames = [frame(address) for address in range(DIGEST_ROOM + 9)]

        def learn(those):
            pipeline.inject_batch([1] * len(those), those)

        learn(frames)
        assert externs.waiting(name) == (0, 0)  # without a subscriber
        externs.enable_digest(name, 1000)
        learn(frames)
        learn(frames)
        assert pipeline.stats()["digests_lost"] == 2 * 9
        assert externs.waiting(name)[0] == DIGEST_ROOM
        taken = externs.take(name, 20)
        assert [one.values for one in taken] == [(address, 1, 0) for address in range(20)]
        learn(frames[-9:])
        assert pipeline.stats()["digests_lost"] == 3 * 9  # taken ones keep their room
        externs.release(name, [one.slot for one in taken])
        externs.release(name, [one.slot for one in taken])
        learn(frames[-9:])
        assert pipeline.stats()["digests_lost"] == 3 * 9
        rest = [one.values[0] for one in externs.take(name, DIGEST_ROOM)]
        assert rest == list(range(20, DIGEST_ROOM + 9))


def stream_error(learner, request, stream=None):
    (stream or learner.stream).receive(p4rt.StreamMessageRequest(digest_ack=request))
    [error] = learner.take("error")
    assert error.digest_list_ack.digest_list_ack == request
    return error.canonical_code


def test_acknowledgements_that_are_refused(learner):
    learner.write((INSERT, digest(timeout=0, ack=60)))
    arrivals(learner, [1])
    [message] = learner.take("digest")
    unknown = p4rt.DigestListAck(digest_id=1, list_id=message.list_id)
    assert stream_error(learner, unknown) == code.INVALID_ARGUMENT
    backup = learner.device.open_stream(learner.received.append)
    backup.receive(arbitration((0, 0)))
    learner.received.clear()
    ack = p4rt.DigestListAck(digest_id=message.digest_id, list_id=message.list_id)
    assert stream_error(learner, ack, backup) == code.PERMISSION_DENIED
    ack.list_id = 99  # of a list that is over: no error
    learner.stream.receive(p4rt.StreamMessageRequest(digest_ack=ack))
    assert learner.received == []


def test_a_push_ends_what_was_configured(learner):
    learner.write((INSERT, digest(timeout=0)))
    learner.push()
    arrivals(learner, [1])
    assert learner.take("digest") == []
    assert learner.read(p4rt.DigestEntry()) == []


def test_a_p4info_of_other_widths_is_refused(learner):
    pushed = config()
    port = pushed.p4info.type_info.structs["learned_t"].members[1]
    port.type_spec.bitstring.bit.bitwidth = 10
    with pytest.raises(P4RuntimeError, match="digest learned_t: widths of fields"):
        learner.device.set_forwarding_pipeline_config(config_request(pushed=pushed))


def test_messages_of_any_type_that_is_a_number_or_made_of_such():
    types = p4types_pb2.P4TypeInfo()
    inner, outer = types.structs["inner"], types.structs["outer"]
    inner.members.add(name="flag").type_spec.bool.SetInParent()
    inner.members.add(name="signed").type_spec.bitstring.int.bitwidth = 12
    outer.members.add(name="inner").type_spec.struct.name = "inner"
    pair = outer.members.add(name="pair").type_spec.tuple
    pair.members.add().bitstring.bit.bitwidth = 7
    pair.members.add().bitstring.bit.bitwidth = 100
    spec = p4types_pb2.P4DataTypeSpec()
    spec.struct.name = "outer"
    codec = MessageCodec(spec, types, "digest")
    assert codec.widths == [1, 12, 7, 100]
    data = p4data_pb2.P4Data()
    codec.fill(data, iter([1, 0xFFE, 5, 1 << 99]))
    expected = p4data_pb2.P4Data()
    members = expected.struct.members
    first, second = members.add(), members.add()
    first.struct.members.add(bool=True)
    first.struct.members.add(bitstring=b"\xfe")
    second.tuple.members.add(bitstring=b"\x05")
    second.tuple.members.add(bitstring=b"\x08" + bytes(12))
    assert data == expected
    spec.header.name = "frame_t"
    with pytest.raises(P4RuntimeError, match="P4Data of kind header"):
        MessageCodec(spec, types, "digest")
