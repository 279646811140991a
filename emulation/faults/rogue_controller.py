# SPDX-License-Identifier: Apache-2.0
"""What is done to switches behind the controller's back, by another P4Runtime client.

A push needs the primary's place, so it takes it, and the controller loses it (P4Runtime 1.3,
section 5).
"""

from __future__ import annotations

from controller.p4rt.connection import GrpcConnection
from controller.p4rt.dataplane import DataPlane
from emulation.nodes.switchprocess import SwitchProcess
from testbed.targets import DEVICE_ID

# Above any election id of the controller, which then outbids it.
_TERM = 1 << 32


def push(switch: SwitchProcess, dataplane: DataPlane) -> None:
    """Pushes the program anew: all entries and registers are gone. Raises ``SwitchError``."""
    connection = GrpcConnection(switch.name, switch.address, DEVICE_ID)
    connection.term = _TERM
    connection.open()
    try:
        connection.push(dataplane.p4info.message, dataplane.device_config)
    finally:
        connection.close()
