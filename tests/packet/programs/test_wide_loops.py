# SPDX-License-Identifier: Apache-2.0
"""Tests loops over wide fields (switch/codegen/loop_fusion.py) at the end of their registers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.forwarding import contenders, traffic
from controller.p4rt.connection import DeviceConnection
from controller.p4rt.entries import P4Info, insertion
from switch.p4runtime.device import Device
from switch.pipeline import Pipeline
from testbed.targets import DEVICE_ID

SLOTS = 8192  # p4src/config.p4, with blocks of 1 KiB
CELLS = 12  # that a first contribution touches: four words of the slot, twice, and four blocks


@pytest.fixture
def loaded() -> Iterator[tuple[DeviceConnection, P4Info, Device]]:
    """A switch that has the aggregation program."""
    path = contenders.build("aggregation")
    p4info = P4Info.load(path.with_suffix(".p4info.txtpb"))
    device = Device(DEVICE_ID)
    connection = DeviceConnection("switch", device)
    connection.open()
    connection.push(p4info.message, path.with_suffix(".json").read_bytes())
    yield connection, p4info, device
    connection.close()
    device.close()


def one_slot(connection: DeviceConnection, p4info: P4Info, slot: int) -> None:
    """The switch as the root of four workers with one slot, which lies at an index."""
    *others, _ = contenders.tree(p4info, 1)
    key = {
        "job": traffic.JOB, "epoch": traffic.EPOCH, "stream": traffic.STREAM, "node": traffic.NODE,
    }  # fmt: skip
    values = {"base": slot, "mask": 0, "full": 15, "group": 1}
    node = p4info.table_entry("aggregation.nodes", key, "root", values)
    connection.write([insertion(one) for one in (*others, node)])


def contribute(pipeline: Pipeline) -> list[tuple[int, bytes]]:
    """One from each worker."""
    frames = [traffic.packet(worker) for worker in range(traffic.PORTS)]
    return [out for port, one in enumerate(frames, 1) for out in pipeline.inject(port, one)]


def test_the_last_cell_of_registers_holds_a_sum(
    loaded: tuple[DeviceConnection, P4Info, Device],
) -> None:
    connection, p4info, device = loaded
    one_slot(connection, p4info, SLOTS - 1)
    assert device.pipeline is not None
    answers = contribute(device.pipeline)
    assert sorted(port for port, _ in answers) == [1, 2, 3, 4]
    assert [traffic.wrong_sum(frame) for _, frame in answers] == [None] * 4
    assert device.pipeline.stats()["out_of_range"] == 0


def test_what_is_beyond_the_registers_is_ignored_and_counted(
    loaded: tuple[DeviceConnection, P4Info, Device],
) -> None:
    """Each worker finds an empty slot, as nothing was kept."""
    connection, p4info, device = loaded
    one_slot(connection, p4info, SLOTS)
    assert device.pipeline is not None
    assert contribute(device.pipeline) == []
    assert device.pipeline.stats()["out_of_range"] == CELLS * traffic.PORTS
