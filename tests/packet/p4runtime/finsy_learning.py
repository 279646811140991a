# SPDX-License-Identifier: Apache-2.0
r"""A finsy conversation about tests/p4/learning.p4: meters, digests, idle timeouts.

    .venv-finsy/bin/python tests/packet/p4runtime/finsy_learning.py \
        ADDRESS P4INFO JSON embedded|bmv2 ELECTION

As finsy_conversation.py: any difference ends it with a traceback; at the end it prints "done".
"""

import asyncio
import sys
from pathlib import Path

import finsy as fy

HOST = "02:00:00:00:00:aa"
SECOND = 1_000_000_000
RATES = fy.P4MeterConfig(cir=1, cburst=2, pir=3, pburst=4)


def known(**more):
    match = fy.Match(**{"hdr.frame.source": HOST})
    return fy.P4TableEntry("sources", match=match, action=fy.Action("known"), **more)


def asked():
    return fy.P4TableEntry("sources", match=fy.Match(**{"hdr.frame.source": HOST}))


async def read(switch, entity):
    return [one async for one in switch.read(entity)]


async def meters(switch):
    await switch.delete_all()
    await switch.write([~fy.P4MeterEntry("arrivals", index=5, config=RATES)])
    cells = await read(switch, fy.P4MeterEntry("arrivals"))
    assert len(cells) == 512, len(cells)
    assert [(one.index, one.config) for one in cells if one.config] == [(5, RATES)], cells[5]
    await switch.write([+known(meter_config=RATES)])
    [found] = await read(switch, fy.P4DirectMeterEntry(table_entry=asked()))
    assert found.config == RATES, found
    await switch.write([~fy.P4DirectMeterEntry(table_entry=asked())])
    [found] = await read(switch, fy.P4DirectMeterEntry(table_entry=asked()))
    assert found.config is None, found


async def digests(switch):
    await switch.delete_all()
    await switch.write([
        +fy.P4DigestEntry("learned_t", max_list_size=2, max_timeout_ns=3600 * SECOND,
                          ack_timeout_ns=3600 * SECOND),
    ])  # fmt: skip
    queue = switch.read_digests("learned_t")
    receiver = asyncio.ensure_future(anext(queue))
    await asyncio.sleep(0)  # its queue exists now
    for last in (1, 1, 2, 1):
        frame = bytes(6) + bytes([2, 0, 0, 0, 0, last]) + b"\0\1"
        await switch.write([fy.P4PacketOut(frame, port=7, padding=0)])
    result = await asyncio.wait_for(receiver, 60)
    values = [(one["source"], one["port"]) for one in result]
    assert values == [(0x020000000001, 7), (0x020000000002, 7)], values
    await switch.write([result.ack()])
    await queue.aclose()


async def idle_timeouts(switch):
    await switch.delete_all()
    queue = switch.read_idle_timeouts()
    receiver = asyncio.ensure_future(anext(queue))
    await asyncio.sleep(0)
    await switch.write([+known(idle_timeout_ns=SECOND // 2)])
    result = await asyncio.wait_for(receiver, 60)
    [entry] = result
    assert entry.idle_timeout_ns == SECOND // 2, entry
    assert list(entry.match.values()) == [0x0200000000AA], entry
    await queue.aclose()


async def main(address, p4info, blob, kind, election):
    options = fy.SwitchOptions(
        p4info=Path(p4info), p4blob=Path(blob), device_id=1, initial_election_id=int(election)
    )
    async with fy.Switch(kind, address, options) as switch:
        assert switch.is_primary
        await meters(switch)
        await digests(switch)
        await idle_timeouts(switch)
    print("done")


asyncio.run(main(*sys.argv[1:]))
