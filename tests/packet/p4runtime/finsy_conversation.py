# SPDX-License-Identifier: Apache-2.0
r"""A finsy conversation with a switch that waits for tests/p4/p4rt_switch.p4; checks replies.

    .venv-finsy/bin/python tests/packet/p4runtime/finsy_conversation.py \
        ADDRESS P4INFO JSON embedded|bmv2

It runs in an environment of its own, which pins finsy's versions of grpcio and protobuf. Any
difference ends it with a traceback; at the end it prints "done".
"""

import asyncio
import sys
from pathlib import Path

import finsy as fy

HOST, CPU_PORT = "02:00:00:00:00:aa", 255
FRAME = bytes.fromhex("0200000000aa0200000000011234") + b"payload"
Code = fy.GRPCStatusCode


def bridge(port=1, action=None, **more):
    match = fy.Match(destination=HOST, port=port)
    return fy.P4TableEntry("bridge", match=match, action=action, **more)


async def read(switch, entity):
    return [one async for one in switch.read(entity)]


async def refused(switch, *updates):
    """Codes of the updates that were refused, by position."""
    error = await failure(switch.write(updates))
    assert error.code == Code.UNKNOWN, error
    assert all(one.message for one in error.details.values()), error
    return {i: one.canonical_code for i, one in error.details.items()}


async def failure(call):
    try:
        await call
    except fy.P4ClientError as error:
        return error
    raise AssertionError("nothing was refused")


async def entries(switch, kind):
    await switch.delete_all()
    await switch.write([+bridge(action=fy.Action("forward", port=2))])
    [found] = await read(switch, bridge())
    assert (found.match["port"], found.action.args["port"]) == (1, 2), found
    await switch.write([~bridge(action=fy.Action("flood", group=3), metadata=b"cookie")])
    [found] = await read(switch, bridge())
    assert found.action.name == "flood", found
    assert found.metadata == b"cookie", found
    # All updates of a batch are tried, and each has its own code.
    codes = await refused(
        switch,
        +bridge(port=2, action=fy.Action("forward", port=4)),
        +bridge(action=fy.Action("forward", port=2)),
        -bridge(port=9),
        ~bridge(port=9, action=fy.Action("drop")),
        +bridge(port=4, action=fy.Action("NoAction")),
    )
    assert codes == {
        1: Code.ALREADY_EXISTS, 2: Code.NOT_FOUND, 3: Code.NOT_FOUND, 4: Code.PERMISSION_DENIED,
    }, codes  # fmt: skip
    await switch.write([
        +fy.P4TableEntry("routes", match=fy.Match(source="02:00:00:00:00:00/40"),
                         action=fy.Action("forward", port=5)),
        +fy.P4TableEntry("policy", priority=7, action=fy.Action("drop"),
                         match=fy.Match(ether_type="0x0800/&0xff00", port="1...4")),
    ])  # fmt: skip
    tables = [one.table_id for one in await read(switch, fy.P4TableEntry())]
    assert sorted(tables) == ["bridge", "bridge", "fixed", "fixed", "policy", "routes"], tables
    [found] = await read(switch, fy.P4TableEntry("policy"))
    assert (found.priority, found.match["port"]) == (7, (1, 4)), found
    if kind != "bmv2":  # it leaves is_const out
        assert all(one.is_const for one in await read(switch, fy.P4TableEntry("fixed")))
    default = fy.P4TableEntry("everything", action=fy.Action("drop"), is_default_action=True)
    await switch.write([~default])
    [found] = await read(switch, fy.P4TableEntry("everything", is_default_action=True))
    assert found.action.name == "drop", found


async def replication(switch):
    await switch.delete_all()
    copies = [(CPU_PORT, 1), (CPU_PORT, 2)]
    await switch.write([+fy.P4MulticastGroupEntry(5, replicas=copies)])
    await switch.write([+fy.P4CloneSessionEntry(7, replicas=copies[:1])])
    [group] = await read(switch, fy.P4MulticastGroupEntry())
    assert sorted((one.port, one.instance) for one in group.replicas) == copies, group
    [session] = await read(switch, fy.P4CloneSessionEntry())
    assert session.session_id == 7, session
    assert [one.port for one in session.replicas] == [CPU_PORT], session
    found = await packets(switch, 2, egress_port=0, group=5)
    assert sorted(one.payload[4:6] for one in found) == [b"\0\1", b"\0\2"], found


async def packets(switch, count, **metadata):
    """The packet-ins that a packet-out makes."""
    queue = switch.read_packets()
    receiver = asyncio.ensure_future(anext(queue))
    await asyncio.sleep(0)  # its queue exists now
    await switch.write([fy.P4PacketOut(FRAME, **metadata)])
    found = [await asyncio.wait_for(receiver, 60)]
    while len(found) < count:
        found.append(await asyncio.wait_for(anext(queue), 60))
    await queue.aclose()
    return found


async def cells(switch, kind):
    [before] = await read(switch, fy.P4CounterEntry("arrivals", index=CPU_PORT & 7))
    [packet] = await packets(switch, 1, egress_port=CPU_PORT, group=0)
    assert packet.payload == FRAME, packet
    assert packet["ingress_port"] == CPU_PORT, packet
    [after] = await read(switch, fy.P4CounterEntry("arrivals", index=CPU_PORT & 7))
    assert after.packet_count == before.packet_count + 1, (before, after)
    assert len(await read(switch, fy.P4CounterEntry("arrivals"))) == 8
    data = fy.P4CounterData(byte_count=5, packet_count=40)
    await switch.write([~fy.P4CounterEntry("arrivals", index=3, data=data)])
    [found] = await read(switch, fy.P4CounterEntry("arrivals", index=3))
    assert found.packet_count == 40, found
    await switch.write([+bridge(action=fy.Action("drop"))])
    [hits] = await read(switch, fy.P4DirectCounterEntry("hits", table_entry=bridge()))
    assert hits.packet_count == 0, hits
    if kind != "bmv2":  # it has no P4Runtime for registers
        await switch.write([~fy.P4RegisterEntry("last", index=2, data=0x12345678)])
        found = [one.data for one in await read(switch, fy.P4RegisterEntry("last"))]
        assert found[2] == 0x12345678, found
        codes = await refused(switch, ~fy.P4RegisterEntry("last", index=4, data=1))
        assert codes == {0: Code.OUT_OF_RANGE}, codes


async def backup(switch, address):
    """A second client reads but may not write; it is primary as soon as the first has gone."""
    options = fy.SwitchOptions(device_id=switch.device_id, initial_election_id=5)
    async with fy.Switch("backup", address, options) as second:
        assert not second.is_primary
        assert second.primary_id == 10
        assert second.p4info.tables["bridge"].alias == "bridge"  # read from the switch
        assert await read(second, fy.P4TableEntry("bridge"))
        error = await failure(second.write([-bridge()]))
        assert error.code == Code.PERMISSION_DENIED, error


async def main(address, p4info, blob, kind):
    options = fy.SwitchOptions(p4info=Path(p4info), p4blob=Path(blob), device_id=1)
    async with fy.Switch("primary", address, options) as switch:
        assert switch.is_primary
        await entries(switch, kind)
        await replication(switch)
        await cells(switch, kind)
        await backup(switch, address)
    # The program is the same, so it is not pushed again, and what was written is there.
    async with fy.Switch("again", address, options(initial_election_id=11)) as switch:
        assert await read(switch, bridge())
    print("done")


asyncio.run(main(*sys.argv[1:]))
