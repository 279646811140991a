# SPDX-License-Identifier: Apache-2.0
"""Tests random meter, digest and timeout requests: every update is answered without internal
errors, and state can be read."""

import pytest
from google.rpc import code_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from switch.p4runtime.errors import P4RuntimeError
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.packet.p4runtime.p4rt_learning import Learner, digest, direct, meter, source
from tests.packet.p4runtime.p4rt_support import write_request

DEFECTS = {code_pb2.INTERNAL, code_pb2.UNKNOWN}
numbers = st.sampled_from([0, 0, 1, 2, 7, 1000, (1 << 63) - 1, -1])
configs = st.builds(
    p4rt.MeterConfig, cir=numbers, cburst=numbers, pir=numbers, pburst=numbers,
    eburst=st.sampled_from([0, 0, 0, 1]),
)  # fmt: skip
hosts = st.integers(1, 3)


def maybe(message, field):
    return st.one_of(
        message, st.tuples(message, configs).map(lambda two: _with(two[0], field, two[1]))
    )


def _with(message, field, config):
    getattr(message, field).CopyFrom(config)
    return message


entities = st.one_of(
    maybe(st.builds(meter, st.sampled_from([None, 0, 5, 511, 512, -1])), "config"),
    maybe(st.builds(direct, hosts), "config"),
    maybe(st.builds(lambda host, ns: source(host, idle_timeout_ns=ns), hosts, numbers),
          "meter_config"),
    st.builds(
        lambda name, size, timeout, ack: digest(name, size, timeout, ack),
        st.sampled_from(["learned_t", "odd_t"]), st.sampled_from([0, 1, 3, -1, (1 << 31) - 1]),
        st.sampled_from([0, 0.5, 9, -1]), st.sampled_from([0, 1, 9, -1]),
    ),
)  # fmt: skip
updates = st.lists(st.tuples(st.integers(0, 4), entities), max_size=10)


@pytest.fixture(scope="module")
def learner():
    learner = Learner()
    yield learner
    learner.device.close()


def codes(learner, batch):
    """Of the updates that were refused."""
    try:
        learner.device.write(write_request(*batch))
    except P4RuntimeError as refused:
        return {error.canonical_code for error in refused.errors}
    return set()


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(updates, st.sampled_from([0, 0.01, 1, 100])), max_size=4))
def test_any_update_is_answered(learner, rounds):
    learner.push()
    learner.received.clear()
    for batch, seconds in rounds:
        assert not DEFECTS & codes(learner, batch)
        for host in (1, 2, 3, 4):
            learner.arrives(host, kind=host << 13)
        due = learner.wait(seconds)
        assert due is None or due > 0
        for notice in learner.received:
            if notice.HasField("digest"):
                assert len(notice.digest.data)
                learner.acknowledge(notice.digest)
            else:
                assert len(notice.idle_timeout_notification.table_entry)
        learner.received.clear()
        everything = (p4rt.MeterEntry(), p4rt.DirectMeterEntry(), p4rt.DigestEntry())
        assert len(learner.read(*everything)) >= 512
        learner.read(p4rt.TableEntry(meter_config={}))
