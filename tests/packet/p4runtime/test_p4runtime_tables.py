# SPDX-License-Identifier: Apache-2.0
"""Tests table entries over P4Runtime: writes take effect and read back; violations get the code
the spec names."""

import pytest
from google.rpc import code_pb2 as code

from switch.p4runtime.device import Device
from switch.p4runtime.errors import P4RuntimeError
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.packet.p4runtime.p4rt_support import (
    CPU_PORT,
    DELETE,
    DEVICE,
    INSERT,
    MODIFY,
    Controller,
    action,
    between,
    entry,
    ethernet,
    exact,
    find,
    lpm,
    optional,
    ternary,
    write_request,
)

HOST = 0x0200_0000_00AA
BRIDGE_KEY = {"destination": exact(HOST), "port": exact(1)}


@pytest.fixture(scope="module")
def pushed():
    device = Device(DEVICE, CPU_PORT)
    controller = Controller(device)
    yield controller
    device.close()


@pytest.fixture
def controller(pushed):
    pushed.push()  # which clears all state
    return pushed


def test_entries_of_every_match_kind_forward(controller):
    device = controller.device
    controller.write(
        (INSERT, entry("bridge", BRIDGE_KEY, action("forward", port=2))),
        (INSERT, entry("routes", {"source": lpm(0x0A00_0000_0000, 8)}, action("forward", port=3))),
        (
            INSERT,
            entry(
                "policy",
                {
                    "ether_type": ternary(0x0800, 0xFF00),
                    "port": between(4, 6),
                    "source": optional(0x0B),
                },
                action("forward", port=4),
                priority=10,
            ),
        ),
    )
    assert device.inject(1, ethernet(HOST)) == [(2, ethernet(HOST))]
    by_prefix = ethernet(0x1, source=0x0A12_3456_789A)
    assert device.inject(7, by_prefix) == [(3, by_prefix)]
    for port, source, ether_type, hit in (
        (5, 0x0B, 0x0806, True),
        (7, 0x0B, 0x0806, False),
        (5, 0x0C, 0x0806, False),
        (5, 0x0B, 0x1806, False),
    ):
        frame = ethernet(0x1, source, ether_type)
        assert device.inject(port, frame) == ([(4, frame)] if hit else [])


def test_the_higher_priority_wins(controller):
    anything = {"ether_type": ternary(0x9999, 0xFFFF)}
    controller.write(
        (INSERT, entry("policy", {}, action("forward", port=1), priority=1)),
        (INSERT, entry("policy", anything, action("forward", port=2), priority=2)),
    )
    frame = ethernet(0x1)
    assert controller.device.inject(9, frame) == [(2, frame)]
    controller.write((DELETE, entry("policy", anything, priority=2)))
    assert controller.device.inject(9, frame) == [(1, frame)]


def test_modify_changes_the_action_and_delete_ends_it(controller):
    frame = ethernet(HOST)
    controller.write((INSERT, entry("bridge", BRIDGE_KEY, action("forward", port=2))))
    controller.write((MODIFY, entry("bridge", BRIDGE_KEY, action("forward", port=3))))
    assert controller.device.inject(1, frame) == [(3, frame)]
    controller.write((DELETE, entry("bridge", BRIDGE_KEY)))
    assert controller.device.inject(1, frame) == []


@pytest.mark.parametrize(
    "written",
    [
        entry(
            "bridge",
            {"destination": exact(0), "port": exact(511)},
            action("flood", group=1),
            metadata=b"who",
            controller_metadata=5,
        ),
        entry("routes", {"source": lpm(0x0A00_0000_0000, 7)}, action("drop")),
        entry("routes", {}, action("forward", port=0)),
        entry("policy", {"port": between(0, 5)}, action("NoAction"), priority=7),
        entry(
            "policy",
            {"source": optional(0), "ether_type": ternary(0, 1)},
            action("drop"),
            priority=2**31 - 1,
        ),
    ],
)
def test_what_is_written_reads_back_the_same(controller, written):
    controller.write((INSERT, written))
    table = p4rt.TableEntry(table_id=written.table_id)
    (found,) = controller.read(table)
    assert sorted(found.match, key=str) == sorted(written.match, key=str)
    found.ClearField("match")
    written = p4rt.TableEntry.FromString(written.SerializeToString())
    written.ClearField("match")
    assert found == written


def test_padded_values_are_taken_and_read_back_canonical(controller):
    padded = entry("bridge", BRIDGE_KEY, action("forward", port=2))
    for match in padded.match:
        match.exact.value = b"\0\0" + match.exact.value
    padded.action.action.params[0].value = b"\0\0\2"
    controller.write((INSERT, padded))
    assert controller.read(p4rt.TableEntry(table_id=padded.table_id)) == [
        entry("bridge", BRIDGE_KEY, action("forward", port=2))
    ]
    assert controller.refusal((INSERT, padded)) == code.ALREADY_EXISTS


def _without_key(index):
    message = entry("bridge", BRIDGE_KEY, action("forward", port=2))
    del message.match[index]
    return message


def _changed(message, change):
    change(message)
    return message


FORWARD = action("forward", port=2)
BAD_ENTRIES = {
    "missing exact field": _without_key(1),
    "field twice": _changed(
        entry("bridge", BRIDGE_KEY, FORWARD), lambda m: m.match.add().CopyFrom(m.match[0])
    ),
    "unknown field": _changed(
        entry("bridge", BRIDGE_KEY, FORWARD), lambda m: m.match.add(field_id=9, **exact(1))
    ),
    "wrong match kind": entry("bridge", {**BRIDGE_KEY, "port": lpm(1, 9)}, FORWARD),
    "match kind not set": entry("bridge", {**BRIDGE_KEY, "port": {}}, FORWARD),
    "value too wide": entry("bridge", {**BRIDGE_KEY, "port": exact(512)}, FORWARD),
    "empty value": entry(
        "bridge", {**BRIDGE_KEY, "port": {"exact": p4rt.FieldMatch.Exact()}}, FORWARD
    ),
    "priority on an exact table": entry("bridge", BRIDGE_KEY, FORWARD, priority=1),
    "prefix length 0": entry("routes", {"source": lpm(0, 0)}, FORWARD),
    "prefix too long": entry("routes", {"source": lpm(0, 49)}, FORWARD),
    "bits below the prefix": entry("routes", {"source": lpm(1, 47)}, FORWARD),
    "mask 0": entry("policy", {"ether_type": ternary(0, 0)}, FORWARD, priority=1),
    "bits outside the mask": entry("policy", {"ether_type": ternary(3, 1)}, FORWARD, priority=1),
    "low above high": entry("policy", {"port": between(2, 1)}, FORWARD, priority=1),
    "full range": entry("policy", {"port": between(0, 511)}, FORWARD, priority=1),
    "no priority on a ternary table": entry("policy", {}, FORWARD),
    "negative priority": entry("policy", {}, FORWARD, priority=-1),
    "no action": entry("bridge", BRIDGE_KEY),
    "action of another table": entry("routes", {}, action("flood", group=1)),
    "parameter missing": _changed(
        entry("bridge", BRIDGE_KEY, FORWARD), lambda m: m.action.action.ClearField("params")
    ),
    "parameter unknown": _changed(
        entry("bridge", BRIDGE_KEY, action("drop")),
        lambda m: m.action.action.params.add(param_id=1, value=b"\1"),
    ),
    "parameter twice": _changed(
        entry("bridge", BRIDGE_KEY, FORWARD),
        lambda m: m.action.action.params.add(param_id=1, value=b"\1"),
    ),
    "parameter too wide": entry("bridge", BRIDGE_KEY, action("forward", port=512)),
    "indirect action": entry("bridge", BRIDGE_KEY, p4rt.TableAction(action_profile_member_id=1)),
    "unknown table": p4rt.TableEntry(table_id=7, action=FORWARD),
    "table id not set": p4rt.TableEntry(action=FORWARD),
    "is_const": entry("bridge", BRIDGE_KEY, FORWARD, is_const=True),
    "idle timeout": entry("bridge", BRIDGE_KEY, FORWARD, idle_timeout_ns=1),
    "time since last hit": entry(
        "bridge", BRIDGE_KEY, FORWARD, time_since_last_hit=p4rt.TableEntry.IdleTimeout()
    ),
    "counter of a table without": entry("routes", {}, FORWARD, counter_data=p4rt.CounterData()),
    "negative count": entry(
        "bridge", BRIDGE_KEY, FORWARD, counter_data=p4rt.CounterData(packet_count=-1)
    ),
    "meter of a table without": entry("bridge", BRIDGE_KEY, FORWARD, meter_config={}),
    "keyless table": entry("everything", {}, action("drop")),
    "default entry inserted": entry("bridge", {}, FORWARD, is_default_action=True),
}


@pytest.mark.parametrize("what", BAD_ENTRIES)
def test_a_malformed_insert_is_an_invalid_argument(controller, what):
    assert controller.refusal((INSERT, BAD_ENTRIES[what])) == code.INVALID_ARGUMENT
    assert controller.read(entry("bridge")) == []


def test_an_update_without_type_or_entity_is_an_invalid_argument(controller):
    request = write_request((0, entry("bridge", BRIDGE_KEY, FORWARD)))
    request.updates.add(type=INSERT)
    with pytest.raises(P4RuntimeError) as refused:
        controller.device.write(request)
    assert [e.canonical_code for e in refused.value.errors] == [code.INVALID_ARGUMENT] * 2


def test_what_does_not_exist_cannot_be_modified_or_deleted(controller):
    missing = entry("bridge", BRIDGE_KEY, FORWARD)
    assert controller.refusal((MODIFY, missing)) == code.NOT_FOUND
    assert controller.refusal((DELETE, missing)) == code.NOT_FOUND


def test_delete_looks_at_the_key_only(controller):
    controller.write((INSERT, entry("bridge", BRIDGE_KEY, FORWARD)))
    nonsense = entry("bridge", BRIDGE_KEY, action("NoAction"), idle_timeout_ns=-5)
    controller.write((DELETE, nonsense))
    assert controller.read(entry("bridge")) == []


def test_a_full_table_is_resource_exhausted(controller):
    for port in range(find("tables", "bridge").size):
        key = {"destination": exact(HOST), "port": exact(port)}
        controller.write((INSERT, entry("bridge", key, FORWARD)))
    key = {"destination": exact(HOST), "port": exact(99)}
    assert controller.refusal((INSERT, entry("bridge", key, FORWARD))) == code.RESOURCE_EXHAUSTED


def test_all_updates_are_tried_and_each_has_its_error(controller):
    good = entry("bridge", BRIDGE_KEY, FORWARD)
    other = entry("bridge", {**BRIDGE_KEY, "port": exact(2)}, FORWARD)
    with pytest.raises(P4RuntimeError) as refused:
        controller.write(
            (INSERT, good), (INSERT, good), (INSERT, BAD_ENTRIES["no action"]), (INSERT, other)
        )
    assert refused.value.code == code.UNKNOWN
    assert [error.canonical_code for error in refused.value.errors] == [
        code.OK,
        code.ALREADY_EXISTS,
        code.ALREADY_EXISTS,
        code.OK,
    ]
    assert len(controller.read(entry("bridge"))) == 2


@pytest.mark.parametrize("atomicity", ["ROLLBACK_ON_ERROR", "DATAPLANE_ATOMIC"])
def test_other_atomicities_are_refused_and_nothing_is_done(controller, atomicity):
    request = write_request((INSERT, entry("bridge", BRIDGE_KEY, FORWARD)))
    request.atomicity = p4rt.WriteRequest.Atomicity.Value(atomicity)
    with pytest.raises(P4RuntimeError) as refused:
        controller.device.write(request)
    assert refused.value.code == code.UNIMPLEMENTED
    assert controller.read(entry("bridge")) == []


# -- default entries and constants ---------------------------------------------------------------


def test_the_default_entry_is_set_read_and_reset(controller):
    asked = entry("bridge", is_default_action=True)
    as_declared = entry("bridge", {}, action("NoAction"), is_default_action=True)
    assert controller.read(asked) == [as_declared]
    changed = entry("bridge", {}, FORWARD, is_default_action=True, metadata=b"mine")
    controller.write((MODIFY, changed))
    assert controller.read(asked) == [changed]
    # A miss in the bridge now sends to port 2 (and the tables behind it find nothing).
    frame = ethernet(0x1)
    assert controller.device.inject(3, frame) == []  # routes' default drops afterwards
    controller.write((MODIFY, asked))
    assert controller.read(asked) == [as_declared]


def test_the_default_of_a_keyless_table_takes_effect(controller):
    frame = ethernet(HOST)
    controller.write((INSERT, entry("bridge", BRIDGE_KEY, FORWARD)))
    assert controller.device.inject(1, frame) == [(2, frame)]
    controller.write((MODIFY, entry("everything", {}, action("drop"), is_default_action=True)))
    assert controller.device.inject(1, frame) == []


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        (
            MODIFY,
            entry("bridge", {}, action("drop"), is_default_action=True),
            code.PERMISSION_DENIED,
        ),  # @tableonly
        (
            INSERT,
            entry("bridge", BRIDGE_KEY, action("NoAction")),
            code.PERMISSION_DENIED,
        ),  # @defaultonly
        (
            MODIFY,
            entry("routes", {}, action("drop"), is_default_action=True),
            code.PERMISSION_DENIED,
        ),  # const default_action
        (DELETE, entry("bridge", is_default_action=True), code.INVALID_ARGUMENT),
        (
            MODIFY,
            entry("bridge", BRIDGE_KEY, FORWARD, is_default_action=True),
            code.INVALID_ARGUMENT,
        ),
        (
            MODIFY,
            entry("policy", {}, FORWARD, is_default_action=True, priority=1),
            code.INVALID_ARGUMENT,
        ),
        (INSERT, entry("fixed", {}, FORWARD, priority=9), code.PERMISSION_DENIED),
        (
            DELETE,
            entry("fixed", {"ether_type": ternary(0x88B5, 0xFFFF)}, priority=2),
            code.PERMISSION_DENIED,
        ),
        (
            MODIFY,
            entry("fixed", {"ether_type": ternary(0x88B5, 0xFFFF)}, FORWARD, priority=2),
            code.PERMISSION_DENIED,
        ),
    ],
)
def test_scopes_and_constants_are_kept(controller, kind, message, expected):
    assert controller.refusal((kind, message)) == expected


def test_const_entries_can_be_read_with_priorities_that_count_down_to_one(controller):
    assert controller.read(entry("fixed")) == [
        entry(
            "fixed",
            {"ether_type": ternary(0x88B5, 0xFFFF)},
            action("forward", port=5),
            priority=2,
            is_const=True,
        ),
        entry(
            "fixed",
            {"ether_type": ternary(0x8800, 0xFF00)},
            action("forward", port=6),
            priority=1,
            is_const=True,
        ),
    ]


# -- reading -------------------------------------------------------------------------------------


def test_reads_select_by_each_field(controller):
    one = entry("policy", {"port": between(1, 2)}, action("drop"), priority=5, metadata=b"a")
    two = entry("policy", {"port": between(1, 3)}, FORWARD, priority=6, controller_metadata=9)
    three = entry("policy", {"port": between(1, 3)}, FORWARD, priority=7)
    route = entry("routes", {}, FORWARD)
    controller.write(*((INSERT, message) for message in (one, two, three, route)))
    assert controller.read(entry("policy")) == [one, two, three]
    assert controller.read(entry("policy", priority=6)) == [two]
    assert controller.read(entry("policy", metadata=b"a")) == [one]
    assert controller.read(entry("policy", controller_metadata=9)) == [two]
    assert controller.read(entry("policy", {"port": between(1, 3)}, priority=7)) == [three]
    assert controller.read(entry("policy", {"port": between(1, 3)})) == [two, three]
    by_action = entry("policy")
    by_action.action.action.action_id = find("actions", "drop").preamble.id
    assert controller.read(by_action) == [one]
    assert controller.read(entry("policy", {"port": between(8, 9)}, priority=7)) == []
    everything = controller.read(p4rt.TableEntry())
    assert [e for e in everything if not e.is_const] == [route, one, two, three]
    assert len([e for e in everything if e.is_const]) == 2


def test_a_read_names_what_is_wrong_and_gives_the_rest(controller):
    controller.write((INSERT, entry("bridge", BRIDGE_KEY, FORWARD)))
    request = p4rt.ReadRequest(device_id=DEVICE)
    request.entities.add(table_entry=entry("bridge"))
    request.entities.add(table_entry=p4rt.TableEntry(table_id=7))
    request.entities.add()
    request.entities.add(table_entry=p4rt.TableEntry(priority=3))
    responses = controller.device.read(request)
    assert [e.table_entry.table_id for e in next(responses).entities] == [entry("bridge").table_id]
    with pytest.raises(P4RuntimeError) as refused:
        next(responses)
    assert refused.value.code == code.UNKNOWN
    assert [error.canonical_code for error in refused.value.errors] == [
        code.OK,
        code.INVALID_ARGUMENT,
        code.INVALID_ARGUMENT,
        code.INVALID_ARGUMENT,
    ]


# -- direct counters -----------------------------------------------------------------------------


def test_direct_counters_count_hits_and_can_be_set(controller):
    frame = ethernet(HOST)
    controller.write((INSERT, entry("bridge", BRIDGE_KEY, FORWARD)))
    for _ in range(3):
        controller.device.inject(1, frame)
    wanted = p4rt.CounterData(packet_count=3, byte_count=3 * len(frame))
    with_counter = entry("bridge", counter_data=p4rt.CounterData())
    assert controller.read(with_counter)[0].counter_data == wanted
    assert not controller.read(entry("bridge"))[0].HasField("counter_data")
    cell = p4rt.DirectCounterEntry(table_entry=entry("bridge", BRIDGE_KEY))
    assert controller.read(cell)[0].data == wanted
    assert controller.read(p4rt.DirectCounterEntry())[0].data == wanted

    # A modified action leaves the count; counter_data in a modify sets it.
    controller.write((MODIFY, entry("bridge", BRIDGE_KEY, action("forward", port=3))))
    assert controller.read(cell)[0].data == wanted
    set_to = p4rt.CounterData(packet_count=100, byte_count=7)
    controller.write(
        (MODIFY, entry("bridge", BRIDGE_KEY, counter_data=set_to)),
    )
    assert controller.read(cell)[0].data == set_to
    cell.data.packet_count = 0
    controller.write((MODIFY, cell))
    assert controller.read(cell)[0].data == p4rt.CounterData()


def test_an_entry_may_be_inserted_with_a_count(controller):
    start = p4rt.CounterData(packet_count=5, byte_count=9)
    controller.write((INSERT, entry("bridge", BRIDGE_KEY, FORWARD, counter_data=start)))
    assert controller.read(entry("bridge", counter_data={}))[0].counter_data == start


def test_direct_counter_errors(controller):
    absent = p4rt.DirectCounterEntry(table_entry=entry("bridge", BRIDGE_KEY), data={})
    assert controller.refusal((MODIFY, absent)) == code.NOT_FOUND
    assert controller.read_refusal(absent) == code.NOT_FOUND
    controller.write((INSERT, entry("bridge", BRIDGE_KEY, FORWARD)))
    assert controller.refusal((INSERT, absent)) == code.INVALID_ARGUMENT
    assert controller.refusal((DELETE, absent)) == code.INVALID_ARGUMENT
    no_counter = p4rt.DirectCounterEntry(table_entry=entry("routes"))
    assert controller.read_refusal(no_counter) == code.INVALID_ARGUMENT
