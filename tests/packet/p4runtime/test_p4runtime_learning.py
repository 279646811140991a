# SPDX-License-Identifier: Apache-2.0
"""Tests meters, digests and idle timeouts over gRPC: the same conversations with this target and
with BMv2, in real time."""

import os
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
from google.rpc import code_pb2 as code

from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.packet.p4runtime.p4rt_learning import (
    JSON_PATH,
    P4INFO_PATH,
    RATES,
    SECOND,
    bare,
    digest,
    direct,
    frame,
    learned,
    meter,
    source,
)
from tests.packet.p4runtime.p4rt_support import DELETE, DEVICE, INSERT, MODIFY, entity
from tests.packet.p4runtime.p4rt_targets import BOTH, ROOT, running
from tests.packet.p4runtime.shell_client import ShellClient, ShellError, needs_shell, run_shell

pytestmark = needs_shell

HOST, OTHER = 0x0200_0000_00AA, 0x0200_0000_00BB
PATIENCE = 20  # s, for notices
# Made by `make setup-test`.
FINSY = Path(os.environ.get("RACKHUB_FINSY", ROOT / ".venv-finsy/bin/python"))


@pytest.fixture(scope="module", params=BOTH)
def target(request):
    """(address, kind, election ids that are new)"""
    with running(request.param) as (_, address, _log):
        yield address, request.param, iter(range(1, 100))


@pytest.fixture
def client(target):
    address, _, elections = target
    client = ShellClient(DEVICE, address, (0, next(elections)))
    client.set_fwd_pipe_config(P4INFO_PATH, JSON_PATH)
    try:
        yield client
    finally:
        client.tear_down()


def write(client, *updates):
    for kind, message in updates:
        client.write_update(p4rt.Update(type=kind, entity=entity(message)))


def read(client, message):
    found = []
    for response in client.read_one(entity(message)):
        found.extend(getattr(one, one.WhichOneof("entity")) for one in response.entities)
    return found


def arrives(client, address, port):
    """A packet-out that the program takes as from another port."""
    out = p4rt.PacketOut(payload=frame(address))
    out.metadata.add(metadata_id=1, value=port.to_bytes(2, "big").lstrip(b"\0"))
    out.metadata.add(metadata_id=2, value=b"\0")
    client.send(p4rt.StreamMessageRequest(packet=out))


def next_message(client, kind):
    message = client.get_stream_packet(kind, timeout=PATIENCE)
    assert message is not None, f"no {kind}"
    return getattr(message, kind)


def refusal(client, kind, message):
    with pytest.raises(ShellError) as refused:
        write(client, (kind, message))
    [(_, error)] = refused.value.errors
    return error.canonical_code


def test_meters_are_written_and_read(client):
    write(client, (MODIFY, meter(3, config=RATES)))
    assert read(client, meter(3)) == [meter(3, config=RATES)]
    assert [one.index.index for one in read(client, meter()) if one.HasField("config")] == [3]
    write(client, (MODIFY, meter(3)))
    assert read(client, meter(3)) == [meter(3)]
    write(client, (INSERT, source(HOST, meter_config=RATES)))
    assert read(client, direct(HOST))[0].config == p4rt.MeterConfig(**RATES)
    assert read(client, bare(HOST, meter_config={}))[0].meter_config == p4rt.MeterConfig(**RATES)
    write(client, (MODIFY, direct(HOST)))
    assert not read(client, direct(HOST))[0].HasField("config")


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        (MODIFY, meter(-1, config=RATES), code.INVALID_ARGUMENT),
        (MODIFY, digest(), code.NOT_FOUND),
        (DELETE, digest(), code.NOT_FOUND),
        (INSERT, meter(1), code.INVALID_ARGUMENT),
        (INSERT, source(HOST, idle_timeout_ns=-1), code.INVALID_ARGUMENT),
        (INSERT, source(HOST, time_since_last_hit={}), code.INVALID_ARGUMENT),
    ],
)
def test_errors_have_the_same_codes(client, kind, message, expected):
    assert refusal(client, kind, message) == expected


def test_digests_are_sent_in_lists_and_not_twice(client):
    """Which messages share a list depends on BMv2's threads: it looks for what was sent before in
    two places."""
    write(client, (INSERT, digest(size=2, timeout=0.2, ack=3600)))
    assert refusal(client, INSERT, digest()) == code.ALREADY_EXISTS
    assert read(client, digest()) == [digest(size=2, timeout=0.2, ack=3600)]
    for address in (1, 1, 2, 1, 2, 3, 4):
        arrives(client, address, 5)
    lists = []
    while sum(len(one.data) for one in lists) < 4:
        lists.append(next_message(client, "digest"))
    assert sorted(one for each in lists for one in learned(each)) == [(n, 5) for n in (1, 2, 3, 4)]
    assert all(len(one.data) <= 2 for one in lists)
    ack = p4rt.DigestListAck(digest_id=lists[0].digest_id, list_id=lists[0].list_id)
    # BMv2 does not say when it has taken an acknowledgement in, and now and then loses one.
    again = None
    for _ in range(PATIENCE):
        client.send(p4rt.StreamMessageRequest(digest_ack=ack))
        for address in (4, 3, 2, 1):
            arrives(client, address, 5)
        again = client.get_stream_packet("digest", timeout=1)
        if again is not None:
            break
    assert again is not None
    assert set(learned(again.digest)) <= set(learned(lists[0]))


def test_a_digest_does_not_wait_longer_than_it_may(client):
    write(client, (INSERT, digest(size=100, timeout=0.2, ack=3600)))
    arrives(client, HOST, 9)
    assert learned(next_message(client, "digest")) == [(HOST, 9)]


def test_idle_entry_is_notified(target, client):
    written = source(HOST, idle_timeout_ns=SECOND // 2, controller_metadata=9)
    write(client, (INSERT, written), (INSERT, source(OTHER)))
    notice = next_message(client, "idle_timeout_notification")
    [entry] = notice.table_entry
    assert (entry.match, entry.idle_timeout_ns) == (written.match, SECOND // 2)
    assert entry.controller_metadata == 9
    if target[1] != "bmv2":  # it tells the time since its start
        assert abs(notice.timestamp - time.time_ns()) < PATIENCE * SECOND
        again = next_message(client, "idle_timeout_notification")
        assert again.timestamp - notice.timestamp >= SECOND // 2
    [found] = read(client, bare(HOST, time_since_last_hit={}))
    assert found.idle_timeout_ns == SECOND // 2
    assert found.time_since_last_hit.elapsed_ns >= SECOND // 2
    write(client, (DELETE, bare(HOST)))


def test_the_shell_drives_it(target):
    address, _, elections = target
    script = textwrap.dedent(
        f"""
        import p4runtime_sh.shell as sh
        sh.setup(device_id={DEVICE}, grpc_addr={address!r}, election_id=(0, {next(elections)}),
                 verbose=False,
                 config=sh.FwdPipeConfig({str(P4INFO_PATH)!r}, {str(JSON_PATH)!r}))
        cell = sh.MeterEntry("arrivals")
        cell.index = 7
        cell.cir, cell.cburst, cell.pir, cell.pburst = 1, 2, 3, 4
        cell.modify()
        cell.read(lambda m: print("meter", m.index, m.cir, m.cburst, m.pir, m.pburst))
        te = sh.TableEntry("Enter.sources")(action="known")
        te.match["hdr.frame.source"] = "02:00:00:00:00:aa"
        te.idle_timeout_ns = 3600000000000
        te.insert()
        te.read(lambda e: print("entry", e.idle_timeout_ns))
        own = sh.DirectMeterEntry("volume")
        own.table_entry = te
        own.cir, own.cburst, own.pir, own.pburst = 5, 6, 7, 8
        own.modify()
        own.read(lambda m: print("own", m.cir, m.cburst, m.pir, m.pburst))
        te.delete()
        sh.teardown()
        """
    )
    done = run_shell(script)
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines == ["meter 7 1 2 3 4", "entry 3600000000000", "own 5 6 7 8"], done.stderr


@pytest.mark.skipif(not FINSY.exists(), reason=f"no finsy at {FINSY}: run `make setup-test`")
def test_finsy_drives_it(target):
    address, kind, elections = target
    done = subprocess.run(
        [FINSY, "tests/packet/p4runtime/finsy_learning.py", address, P4INFO_PATH, JSON_PATH, kind,
         str(next(elections))],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
