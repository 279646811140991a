# SPDX-License-Identifier: Apache-2.0
"""Tests random P4Runtime requests: every error has a reason, and state can be read, deleted and
rewritten as read."""

import pytest
from google.rpc import code_pb2 as code
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from switch.p4runtime.device import Device
from switch.p4runtime.errors import P4RuntimeError
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.packet.p4runtime.p4rt_support import (
    CPU_PORT,
    DELETE,
    DEVICE,
    INFO,
    INSERT,
    Controller,
    write_request,
)

DEFECTS = {code.INTERNAL, code.UNKNOWN}

table_ids = st.sampled_from([t.preamble.id for t in INFO.tables] * 4 + [0, 1])
action_ids = st.sampled_from([a.preamble.id for a in INFO.actions] * 4 + [0, 1])
counts = st.integers(-1, 2**40)
values = st.one_of(
    st.binary(max_size=7),
    st.sampled_from([b"\0", b"\1", b"\x01\xff", b"\xff" * 6, b"\x0a\0\0\0\0\0"]),
)
small = st.integers(-1, 60)
matches = st.builds(
    lambda field_id, kind: p4rt.FieldMatch(field_id=field_id, **kind),
    st.integers(0, 4),
    st.one_of(
        st.just({}),
        st.builds(lambda v: {"exact": p4rt.FieldMatch.Exact(value=v)}, values),
        st.builds(lambda v: {"optional": p4rt.FieldMatch.Optional(value=v)}, values),
        st.builds(
            lambda v, m: {"ternary": p4rt.FieldMatch.Ternary(value=v, mask=m)}, values, values
        ),
        st.builds(lambda v, n: {"lpm": p4rt.FieldMatch.LPM(value=v, prefix_len=n)}, values, small),
        st.builds(lambda a, b: {"range": p4rt.FieldMatch.Range(low=a, high=b)}, values, values),
    ),
)


@st.composite
def plausible(draw):
    """An entry that is right but perhaps for its values: so that many are accepted."""
    table = draw(st.sampled_from(INFO.tables))
    message = p4rt.TableEntry(table_id=table.preamble.id)
    ordered = False
    for field in table.match_fields:
        value = draw(st.integers(0, 2 ** min(field.bitwidth, 10) - 1))
        data = value.to_bytes(2, "big")
        match = p4rt.FieldMatch(field_id=field.id)
        kind = p4rt_kind(field)
        ordered = ordered or kind in ("ternary", "range", "optional")
        if kind != "exact" and draw(st.booleans()):
            continue
        if kind == "lpm":
            match.lpm.value, match.lpm.prefix_len = data, field.bitwidth
        elif kind == "ternary":
            match.ternary.value, match.ternary.mask = data, b"\xff\xff"
        elif kind == "range":
            match.range.low, match.range.high = data, b"\x01\xff"
        else:
            getattr(match, kind).value = data
        message.match.append(match)
    if ordered:
        message.priority = draw(st.integers(1, 3))
    ref = draw(st.sampled_from(table.action_refs))
    message.action.action.action_id = ref.id
    declared = next(a for a in INFO.actions if a.preamble.id == ref.id)
    for param in declared.params:
        message.action.action.params.add(param_id=param.id, value=b"\1")
    message.metadata = draw(st.binary(max_size=2))
    return message


def p4rt_kind(field):
    return type(field).MatchType.Name(field.match_type).lower()


anything = st.builds(
    p4rt.TableEntry,
    table_id=table_ids,
    match=st.lists(matches, max_size=3),
    priority=small,
    action=st.builds(
        lambda i, ps: p4rt.TableAction(action=p4rt.Action(action_id=i, params=ps)),
        action_ids,
        st.lists(
            st.builds(
                lambda i, v: p4rt.Action.Param(param_id=i, value=v), st.integers(0, 2), values
            ),
            max_size=2,
        ),
    ),
    is_default_action=st.booleans(),
    idle_timeout_ns=st.sampled_from([0, 0, 0, 5]),
)
updates = st.lists(
    st.tuples(st.integers(0, 4), st.one_of(plausible(), plausible(), anything)), max_size=12
)


def errors(call):
    """The errors of a batch, one per element; none if it went well."""
    try:
        call()
    except P4RuntimeError as refused:
        return refused.errors
    return []


@pytest.fixture(scope="module")
def controller():
    device = Device(DEVICE, CPU_PORT)
    yield Controller(device)
    device.close()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(updates)
def test_any_batch_is_answered_and_reads_back(controller, batch):
    controller.push()
    refused = errors(lambda: controller.device.write(write_request(*batch)))
    assert len(refused) in (0, len(batch))
    assert not DEFECTS & {error.canonical_code for error in refused}, refused
    every = controller.read(p4rt.TableEntry())
    ours = [entry for entry in every if not entry.is_const]
    controller.write(*((DELETE, entry) for entry in ours))
    assert [e for e in controller.read(p4rt.TableEntry()) if not e.is_const] == []
    controller.write(*((INSERT, entry) for entry in ours))
    assert controller.read(p4rt.TableEntry()) == every


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(anything, max_size=4), st.lists(st.binary(max_size=40), max_size=3))
def test_any_read_is_answered(controller, queries, noise):
    controller.push()
    request = p4rt.ReadRequest(device_id=DEVICE)
    for query in queries:
        request.entities.add(table_entry=query)
        request.entities.add(direct_counter_entry=p4rt.DirectCounterEntry(table_entry=query))
    for data in noise:
        with_noise = request.entities.add()
        try:
            with_noise.ParseFromString(data)
        except Exception:  # not a message at all: gRPC refuses it before we see it
            del request.entities[-1]
    refused = errors(lambda: list(controller.device.read(request)))
    assert len(refused) in (0, len(request.entities))
    assert not DEFECTS & {error.canonical_code for error in refused}, refused
