# SPDX-License-Identifier: Apache-2.0
"""Tests pipeline configuration over P4Runtime: verify, commit, and forwarding meanwhile."""

import json

import pytest
from google.rpc import code_pb2 as code

from switch.loader import load_program
from switch.p4runtime.device import Device
from switch.p4runtime.errors import P4RuntimeError
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from switch.pipeline import Pipeline
from tests.packet.p4runtime.p4rt_support import (
    DEVICE,
    INFO,
    INSERT,
    JSON_PATH,
    MODIFY,
    P4,
    Controller,
    action,
    config,
    config_request,
    entry,
    ethernet,
    exact,
)

HOST = 0x0200_0000_00AA
FRAME = ethernet(HOST)
ENTRY = entry("bridge", {"destination": exact(HOST), "port": exact(1)}, action("forward", port=2))


@pytest.fixture
def controller():
    device = Device(DEVICE)
    yield Controller(device)
    device.close()


def _code(call, *args):
    with pytest.raises(P4RuntimeError) as refused:
        call(*args)
    return refused.value.code


def _get(controller, kind="ALL", device_id=DEVICE):
    request = p4rt.GetForwardingPipelineConfigRequest(
        device_id=device_id,
        response_type=p4rt.GetForwardingPipelineConfigRequest.ResponseType.Value(kind),
    )
    return controller.device.get_forwarding_pipeline_config(request)


def _set(controller, *args, **kwargs):
    return controller.device.set_forwarding_pipeline_config(config_request(*args, **kwargs))


def test_before_a_push_reads_and_writes_fail_and_there_is_no_config(controller):
    assert _code(controller.write, (INSERT, ENTRY)) == code.FAILED_PRECONDITION
    assert _code(controller.read, entry("bridge")) == code.FAILED_PRECONDITION
    assert not _get(controller).HasField("config")
    request = p4rt.CapabilitiesRequest()
    assert controller.device.capabilities(request).p4runtime_api_version == "1.4.1"


def test_a_push_commits_and_every_part_of_it_can_be_read(controller):
    pushed = config(cookie=0)
    _set(controller, "VERIFY_AND_COMMIT", pushed)
    assert _get(controller).config == pushed
    assert _get(controller, "COOKIE_ONLY").config == p4rt.ForwardingPipelineConfig(
        cookie=pushed.cookie
    )
    assert _get(controller, "P4INFO_AND_COOKIE").config == p4rt.ForwardingPipelineConfig(
        p4info=pushed.p4info, cookie=pushed.cookie
    )
    assert _get(controller, "DEVICE_CONFIG_AND_COOKIE").config == p4rt.ForwardingPipelineConfig(
        p4_device_config=pushed.p4_device_config, cookie=pushed.cookie
    )
    assert _code(_get, controller, "ALL", 9) == code.NOT_FOUND


def test_without_a_cookie_none_is_given_back(controller):
    _set(controller, "VERIFY_AND_COMMIT", config())
    answer = _get(controller, "COOKIE_ONLY")
    assert answer.HasField("config")
    assert not answer.config.HasField("cookie")


def test_a_second_push_clears_the_state(controller):
    seen = []
    controller.device.on_commit = seen.append
    controller.push()
    controller.write((INSERT, ENTRY))
    assert controller.device.inject(1, FRAME) == [(2, FRAME)]
    first = controller.device.pipeline
    controller.push()
    assert controller.read(entry("bridge")) == []
    assert controller.device.inject(1, FRAME) == []
    assert seen == [first, controller.device.pipeline]


def test_verify_changes_nothing(controller):
    _set(controller, "VERIFY", config())
    assert not _get(controller).HasField("config")
    assert controller.device.pipeline is None


def test_a_saved_config_takes_writes_and_forwards_once_committed(controller):
    controller.push()
    controller.write((INSERT, ENTRY))
    saved = config(cookie=2)
    _set(controller, "VERIFY_AND_SAVE", saved)
    assert _get(controller).config == saved
    assert controller.read(entry("bridge")) == []  # requests mean the saved one now
    other = entry(
        "bridge", {"destination": exact(HOST), "port": exact(1)}, action("forward", port=7)
    )
    controller.write((INSERT, other))
    assert controller.device.inject(1, FRAME) == [(2, FRAME)]  # the old one forwards
    _set(controller, "COMMIT")
    assert controller.device.inject(1, FRAME) == [(7, FRAME)]
    assert _code(_set, controller, "COMMIT") == code.NOT_FOUND


def test_commit_takes_no_config(controller):
    _set(controller, "VERIFY_AND_SAVE", config())
    assert _code(_set, controller, "COMMIT", config()) == code.INVALID_ARGUMENT


def test_reconcile_keeps_the_state_of_the_same_program(controller):
    controller.push()
    controller.write((INSERT, ENTRY))
    _set(controller, "RECONCILE_AND_COMMIT", config(cookie=8))
    assert _get(controller, "COOKIE_ONLY").config.cookie.cookie == 8
    assert controller.device.inject(1, FRAME) == [(2, FRAME)]
    empty = config_request("RECONCILE_AND_COMMIT")
    push = controller.device.set_forwarding_pipeline_config
    assert _code(push, empty) == code.INVALID_ARGUMENT


def _state(controller):
    """All that a controller can read, const entries left out."""
    tables = p4rt.TableEntry()
    tables.counter_data.SetInParent()
    queries = [tables, p4rt.CounterEntry(), p4rt.RegisterEntry(), p4rt.MulticastGroupEntry()]
    queries += [p4rt.CloneSessionEntry(), entry("everything", is_default_action=True)]
    return [one for one in controller.read(*queries) if not getattr(one, "is_const", False)]


def _filled(controller):
    """A program with some of everything in its state."""
    controller.push()
    group = p4rt.MulticastGroupEntry(multicast_group_id=3)
    group.replicas.add(egress_port=4, instance=1)
    session = p4rt.CloneSessionEntry(session_id=9)
    session.replicas.add(egress_port=5, instance=1)
    default = entry("everything", {}, action("NoAction"), is_default_action=True)
    flood = entry("bridge", {"destination": exact(5), "port": exact(3)}, action("flood", group=3))
    controller.write((INSERT, group), (INSERT, session), (MODIFY, default))
    controller.write((INSERT, ENTRY), (INSERT, flood))
    assert controller.device.inject(1, FRAME) == [(2, FRAME)]
    assert controller.device.inject(3, ethernet(5))[0][0] == 4


def test_reconcile_carries_the_state_into_another_program(controller):
    _filled(controller)
    before, pipeline = _state(controller), controller.device.pipeline
    other = config(cookie=9)
    other.p4_device_config += b" "
    _set(controller, "RECONCILE_AND_COMMIT", other)
    assert controller.device.pipeline is not pipeline
    assert _state(controller) == before
    assert _get(controller).config == other
    assert controller.device.inject(1, FRAME) == [(2, FRAME)]


def _smaller(what):
    """The program with fewer cells, or with another id for a table that has entries."""
    other, document = config(), json.loads(config().p4_device_config)
    if what == "registers":
        next(one for one in document["register_arrays"] if one["name"] == "Switch.last")["size"] = 1
        next(one for one in other.p4info.registers if one.preamble.alias == "last").size = 1
    else:
        bridge = next(one for one in other.p4info.tables if one.preamble.alias == "bridge")
        for one in other.p4info.direct_counters:
            one.direct_table_id = 0x2000001
        bridge.preamble.id = 0x2000001
    other.p4_device_config = json.dumps(document).encode()
    return other


@pytest.mark.parametrize("what", ["registers", "tables"])
def test_reconcile_rejects_tables_too_small_for_state(controller, what):
    _filled(controller)
    before = _state(controller)
    with pytest.raises(P4RuntimeError, match="state cannot be preserved") as refused:
        _set(controller, "RECONCILE_AND_COMMIT", _smaller(what))
    assert refused.value.code == code.INVALID_ARGUMENT
    assert _state(controller) == before
    assert controller.device.inject(1, FRAME) == [(2, FRAME)]


def _unsupported():
    """A program whose first action is a primitive that no target has."""
    document = json.loads(config().p4_device_config)
    document["actions"][0]["primitives"] = [{"op": "teleport", "parameters": []}]
    return json.dumps(document).encode()


def _unlimited():
    """A register array that no memory holds."""
    document = json.loads(config().p4_device_config)
    document["register_arrays"][0]["size"] = 1 << 61
    return json.dumps(document).encode()


def _inconsistent():
    """An action that a table names is not there."""
    document = json.loads(config().p4_device_config)
    document["pipelines"][0]["tables"][0]["action_ids"][0] = 999
    return json.dumps(document).encode()


def _other_width():
    info = type(INFO)()
    info.CopyFrom(INFO)
    info.tables[0].match_fields[0].bitwidth = 32
    return info


@pytest.mark.parametrize(
    "bad",
    [
        p4rt.ForwardingPipelineConfig(),
        p4rt.ForwardingPipelineConfig(p4info=INFO),
        p4rt.ForwardingPipelineConfig(p4_device_config=config().p4_device_config),
        p4rt.ForwardingPipelineConfig(p4info=INFO, p4_device_config=b"\x0a\x00"),
        p4rt.ForwardingPipelineConfig(p4info=INFO, p4_device_config=b"{}"),
        p4rt.ForwardingPipelineConfig(p4info=INFO, p4_device_config=_unsupported()),
        p4rt.ForwardingPipelineConfig(p4info=INFO, p4_device_config=b"[" * 100_000),
        p4rt.ForwardingPipelineConfig(p4info=INFO, p4_device_config=_unlimited()),
        p4rt.ForwardingPipelineConfig(p4info=INFO, p4_device_config=_inconsistent()),
        p4rt.ForwardingPipelineConfig(
            p4info=INFO, p4_device_config=(P4 / "router.json").read_bytes()
        ),
        p4rt.ForwardingPipelineConfig(
            p4info=_other_width(), p4_device_config=config().p4_device_config
        ),
    ],
    ids=[
        "nothing",
        "no program",
        "no p4info",
        "no JSON",
        "no program in it",
        "unsupported",
        "brackets",
        "no end of cells",
        "inconsistent",
        "JSON of another program",
        "p4info of another program",
    ],
)
@pytest.mark.parametrize("how", ["VERIFY", "VERIFY_AND_SAVE", "VERIFY_AND_COMMIT"])
def test_unrealizable_config_is_rejected_and_old_program_forwards(controller, how, bad):
    controller.push()
    controller.write((INSERT, ENTRY))
    with pytest.raises(P4RuntimeError) as refused:
        _set(controller, how, bad)
    assert refused.value.code == code.INVALID_ARGUMENT
    assert refused.value.message
    assert controller.device.inject(1, FRAME) == [(2, FRAME)]
    assert controller.read(entry("bridge")) == [ENTRY]


def test_the_reason_for_a_refusal_names_the_construct(controller):
    bad = p4rt.ForwardingPipelineConfig(p4info=INFO, p4_device_config=_unsupported())
    with pytest.raises(P4RuntimeError, match="teleport"):
        _set(controller, "VERIFY", bad)


def test_only_the_primary_pushes(controller):
    request = config_request(pushed=config(), election=(0, 0))
    push = controller.device.set_forwarding_pipeline_config
    assert _code(push, request) == code.PERMISSION_DENIED
    request = config_request(pushed=config())
    request.device_id = 9
    assert _code(push, request) == code.NOT_FOUND
    request = config_request(pushed=config())
    request.role = "nobody"
    assert _code(push, request) == code.NOT_FOUND
    assert _code(_set, controller, "UNSPECIFIED", config()) == code.INVALID_ARGUMENT


def test_a_target_that_refuses_the_new_pipeline_keeps_the_old_one(controller):
    controller.push()
    controller.write((INSERT, ENTRY))

    def refuse(pipeline):
        raise OSError("no interface left")

    controller.device.on_commit = refuse
    with pytest.raises(OSError, match="no interface"):
        controller.push()
    assert controller.device.inject(1, FRAME) == [(2, FRAME)]


def test_a_program_given_at_the_start_forwards_without_p4info():
    device = Device(DEVICE, pipeline=Pipeline(load_program(JSON_PATH)))
    controller = Controller(device)
    try:
        fixed = ethernet(HOST, ether_type=0x88B5)  # the program's own const entry
        assert device.inject(1, fixed) == [(5, fixed)]
        assert _code(controller.read, entry("bridge")) == code.FAILED_PRECONDITION
    finally:
        device.close()
