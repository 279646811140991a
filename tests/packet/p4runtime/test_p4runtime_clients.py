# SPDX-License-Identifier: Apache-2.0
"""Tests clients over gRPC: the same conversations with this target and with BMv2."""

import contextlib
import textwrap

import grpc
import pytest
from google.rpc import code_pb2 as code
from google.rpc import status_pb2

from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.packet.p4runtime.p4rt_support import (
    CPU_PORT,
    DELETE,
    DEVICE,
    INSERT,
    JSON_PATH,
    MODIFY,
    P4INFO_PATH,
    action,
    config,
    config_request,
    entity,
    entry,
    ethernet,
    exact,
    find,
    lpm,
    packet_out,
    write_request,
)
from tests.packet.p4runtime.p4rt_targets import BOTH, running
from tests.packet.p4runtime.shell_client import ShellClient, ShellError, needs_shell, run_shell

pytestmark = needs_shell

HOST = 0x0200_0000_00AA
BRIDGE_KEY = {"destination": exact(HOST), "port": exact(1)}


@pytest.fixture(scope="module", params=BOTH)
def address(request):
    with running(request.param) as (_, address, _log):
        yield address


@contextlib.contextmanager
def connected(address, election=(0, 1)):
    client = ShellClient(DEVICE, address, election)
    try:
        yield client
    finally:
        client.tear_down()


@pytest.fixture
def client(address):
    with connected(address) as client:
        client.set_fwd_pipe_config(P4INFO_PATH, JSON_PATH)
        yield client


def update(kind, message):
    return p4rt.Update(type=kind, entity=entity(message))


def read(client, *messages):
    found = []
    for message in messages:
        for response in client.read_one(entity(message)):
            found.extend(getattr(e, e.WhichOneof("entity")) for e in response.entities)
    return found


def send(client, payload, **metadata):
    request = p4rt.StreamMessageRequest(packet=packet_out(payload, **metadata))
    client.send(request)


def received(client):
    message = client.get_stream_packet("packet", timeout=60)
    assert message is not None, "no packet-in"
    fields = {m.metadata_id: int.from_bytes(m.value, "big") for m in message.packet.metadata}
    return fields, message.packet.payload


def test_the_pushed_config_reads_back(client):
    assert client.get_p4info() == config().p4info
    answer = client.stub.GetForwardingPipelineConfig(
        p4rt.GetForwardingPipelineConfigRequest(device_id=DEVICE)
    )
    assert answer.config.p4_device_config == JSON_PATH.read_bytes()
    assert client.api_version()


def test_entries_are_inserted_modified_read_and_deleted(client):
    written = entry("bridge", BRIDGE_KEY, action("forward", port=2))
    client.write_update(update(INSERT, written))
    assert read(client, entry("bridge")) == [written]
    changed = entry("bridge", BRIDGE_KEY, action("flood", group=3))
    client.write_update(update(MODIFY, changed))
    assert read(client, entry("bridge")) == [changed]
    client.write_update(update(DELETE, written))
    assert read(client, entry("bridge")) == []


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        (DELETE, entry("bridge", BRIDGE_KEY), code.NOT_FOUND),
        (MODIFY, entry("bridge", BRIDGE_KEY, action("forward", port=1)), code.NOT_FOUND),
        (INSERT, entry("routes", {"source": lpm(1, 8)}, action("drop")), code.INVALID_ARGUMENT),
        (INSERT, entry("bridge", {}, action("forward", port=1)), code.INVALID_ARGUMENT),
        (INSERT, entry("bridge", BRIDGE_KEY, action("forward", port=512)), code.INVALID_ARGUMENT),
        (INSERT, entry("bridge", BRIDGE_KEY, action("NoAction")), code.PERMISSION_DENIED),
        (INSERT, entry("policy", {}, action("drop")), code.INVALID_ARGUMENT),
        (
            MODIFY,
            entry("routes", {}, action("drop"), is_default_action=True),
            code.PERMISSION_DENIED,
        ),
        (INSERT, p4rt.MulticastGroupEntry(), code.INVALID_ARGUMENT),
    ],
)
def test_errors_have_the_same_codes(client, kind, message, expected):
    with pytest.raises(ShellError) as refused:
        client.write_update(update(kind, message))
    assert [error.canonical_code for _, error in refused.value.errors] == [expected]


def test_each_update_of_a_failed_batch_has_its_error(client):
    good = entry("bridge", BRIDGE_KEY, action("forward", port=2))
    request = write_request((INSERT, good), (INSERT, good), (DELETE, good))
    with pytest.raises(grpc.RpcError) as refused:
        client.stub.Write(request)
    assert refused.value.code() == grpc.StatusCode.UNKNOWN
    details = dict(refused.value.trailing_metadata())["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(details)
    codes = []
    for detail in status.details:
        error = p4rt.Error()
        assert detail.Unpack(error)
        codes.append(error.canonical_code)
    assert status.code == code.UNKNOWN
    assert codes == [code.OK, code.ALREADY_EXISTS, code.OK]


def test_a_packet_out_comes_back_as_packet_in(client):
    frame = ethernet(HOST)
    send(client, frame, egress_port=CPU_PORT, group=0)
    fields, payload = received(client)
    assert fields == {1: CPU_PORT, 2: 0}
    assert payload == frame


def test_multicast_makes_copies_with_their_instances(client):
    group = p4rt.MulticastGroupEntry(multicast_group_id=5)
    group.replicas.add(egress_port=CPU_PORT, instance=1)
    group.replicas.add(egress_port=CPU_PORT, instance=2)
    client.write_update(update(INSERT, group))
    (found,) = read(client, group)
    replicas = found.multicast_group_entry.replicas  # BMv2 returns them in another order
    assert sorted(replica.instance for replica in replicas) == [1, 2]
    assert {replica.egress_port for replica in replicas} == {CPU_PORT}
    send(client, ethernet(HOST), egress_port=0, group=5)
    copies = sorted(received(client)[1] for _ in range(2))
    assert copies == [ethernet(HOST & ~0xFFFF | instance) for instance in (1, 2)]
    client.write_update(update(DELETE, group))


def test_counters_count_what_went_through(client):
    arrivals = p4rt.CounterEntry(counter_id=find("counters", "arrivals").preamble.id)
    arrivals.index.index = CPU_PORT & 7
    (before,) = read(client, arrivals)
    for _ in range(3):
        send(client, ethernet(HOST), egress_port=CPU_PORT, group=0)
        received(client)
    (after,) = read(client, arrivals)
    assert after.data.packet_count - before.data.packet_count == 3
    arrivals.data.packet_count = 7
    client.write_update(update(MODIFY, arrivals))
    assert read(client, arrivals)[0].data.packet_count == 7


def test_default_entries_read_back(client):
    asked = entry("everything", is_default_action=True)
    assert read(client, asked)[0].action == action("NoAction")
    changed = entry("everything", {}, action("drop"), is_default_action=True)
    client.write_update(update(MODIFY, changed))
    assert read(client, asked)[0].action == action("drop")
    client.write_update(update(MODIFY, asked))
    assert read(client, asked)[0].action == action("NoAction")


def test_const_entries_are_there(client):
    found = {
        int.from_bytes(e.match[0].ternary.value, "big"): e.action
        for e in read(client, entry("fixed"))
    }
    assert found == {0x88B5: action("forward", port=5), 0x8800: action("forward", port=6)}


def test_a_backup_reads_but_does_not_write_until_it_takes_over(address, client):
    written = entry("bridge", BRIDGE_KEY, action("forward", port=2))
    client.write_update(update(INSERT, written))
    with connected(address, (0, 0)) as backup:
        assert read(backup, entry("bridge")) == [written]
        with pytest.raises(ShellError) as refused:
            backup.write_update(update(DELETE, written))
        assert refused.value.code == grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(ShellError) as refused:
            backup.set_fwd_pipe_config(P4INFO_PATH, JSON_PATH)
        assert refused.value.code == grpc.StatusCode.PERMISSION_DENIED

    with connected(address, (0, 9)) as taker:
        result = client.get_stream_packet("arbitration", timeout=60)
        assert result.arbitration.status.code == code.ALREADY_EXISTS
        assert result.arbitration.election_id.low == 9
        with pytest.raises(ShellError) as refused:
            client.write_update(update(DELETE, written))
        assert refused.value.code == grpc.StatusCode.PERMISSION_DENIED
        taker.write_update(update(DELETE, written))
        # Packet-ins go to the primary only.
        send(taker, ethernet(HOST), egress_port=CPU_PORT, group=0)
        assert received(taker)[1] == ethernet(HOST)
        assert client.get_stream_packet("packet", timeout=0.2) is None


@pytest.fixture(params=BOTH)
def fresh(request):
    """A switch that has no program yet, and its kind."""
    with running(request.param) as (_, address, _log), connected(address) as client:
        yield client, request.param


def test_pipeline_actions_and_cookies(fresh):
    client, kind = fresh
    push = client.stub.SetForwardingPipelineConfig
    asked = p4rt.GetForwardingPipelineConfigRequest(device_id=DEVICE)
    asked.response_type = p4rt.GetForwardingPipelineConfigRequest.COOKIE_ONLY

    def refusal(*args, **kwargs):
        with pytest.raises(grpc.RpcError) as refused:
            push(config_request(*args, **kwargs))
        return refused.value.code()

    if kind != "bmv2":  # it finds nothing wrong with no program
        assert refusal("VERIFY") == grpc.StatusCode.INVALID_ARGUMENT
    push(config_request("VERIFY_AND_SAVE", config(cookie=7)))
    push(config_request("COMMIT"))
    answer = client.stub.GetForwardingPipelineConfig(asked)
    assert answer.config == p4rt.ForwardingPipelineConfig(cookie=config(cookie=7).cookie)
    written = entry("bridge", BRIDGE_KEY, action("forward", port=2))
    client.write_update(update(INSERT, written))
    if kind == "bmv2":  # it has no RECONCILE_AND_COMMIT
        assert refusal("RECONCILE_AND_COMMIT", config()) == grpc.StatusCode.UNKNOWN
        return
    push(config_request("RECONCILE_AND_COMMIT", config(cookie=8)))
    assert client.stub.GetForwardingPipelineConfig(asked).config.cookie.cookie == 8
    assert read(client, entry("bridge")) == [written]


def test_registers_are_written_and_read(fresh):
    client, kind = fresh
    client.set_fwd_pipe_config(P4INFO_PATH, JSON_PATH)
    cell = p4rt.RegisterEntry(register_id=find("registers", "last").preamble.id)
    cell.index.index = 2
    cell.data.bitstring = b"\x12\x34"
    if kind == "bmv2":
        with pytest.raises(ShellError) as refused:
            client.write_update(update(MODIFY, cell))
        codes = [error.canonical_code for _, error in refused.value.errors]
        assert codes == [code.UNIMPLEMENTED]
        return
    client.write_update(update(MODIFY, cell))
    everything = p4rt.RegisterEntry(register_id=cell.register_id)
    assert [one.data.bitstring for one in read(client, everything)] == [
        b"\0", b"\0", b"\x12\x34", b"\0",
    ]  # fmt: skip


# This one is last: on this target an election id, once seen, stays the highest until a restart
# (P4Runtime spec, "Client Arbitration Update"), so the clients before it could not come after.
def test_the_shell_drives_it(address):
    script = textwrap.dedent(
        f"""
        import p4runtime_sh.shell as sh
        sh.setup(device_id={DEVICE}, grpc_addr={address!r}, election_id=(1, 0), verbose=False,
                 config=sh.FwdPipeConfig({str(P4INFO_PATH)!r}, {str(JSON_PATH)!r}))
        te = sh.TableEntry("bridge")(action="forward")
        te.match["destination"] = "02:00:00:00:00:aa"
        te.match["port"] = "1"
        te.action["port"] = "2"
        te.insert()
        te.action["port"] = "3"
        te.modify()
        te.counter_data
        te.read(lambda e: print("entry", e.action["port"].value, e.counter_data.packet_count))
        policy = sh.TableEntry("policy")(action="drop")
        policy.match["ether_type"] = "0x0800&&&0xff00"
        policy.match["port"] = "1..4"
        policy.priority = 10
        policy.insert()
        policy.read(lambda e: print("policy", e.priority))
        group = sh.MulticastGroupEntry(7)
        group.add({CPU_PORT}, 1)
        group.insert()
        sh.MulticastGroupEntry().read(lambda g: print("group", g.group_id))
        mirror = sh.CloneSessionEntry(3)
        mirror.add({CPU_PORT}, 1)
        mirror.insert()
        sh.CloneSessionEntry().read(lambda s: print("session", s.session_id))
        sh.CounterEntry("arrivals").read(lambda c: print("counter", c.index))
        te.delete()
        print("left", len(list(sh.TableEntry("bridge").read())))
        sh.teardown()
        """
    )
    done = run_shell(script)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line]
    assert [line.split()[0] for line in lines] == [
        "entry",
        "policy",
        "group",
        "session",
        *["counter"] * 8,
        "left",
    ], done.stdout
    assert lines[-1] == "left 0"
    assert "group 7" in lines
    assert "session 3" in lines
    assert "policy 10" in lines
