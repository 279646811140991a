# SPDX-License-Identifier: Apache-2.0
"""A second P4Runtime client that changes switches without the controller's knowledge.

Only the primary client may push a program, so this one takes mastership from the controller
(P4Runtime 1.3, section 5).
"""

from __future__ import annotations

from controller.p4rt.connection import GrpcConnection
from controller.p4rt.dataplane import DataPlane
from emulation.nodes.switchprocess import SwitchProcess
from testbed.targets import DEVICE_ID

# Above every election id of the controller, which outbids it afterwards.
_TERM = 1 << 32


def push(switch: SwitchProcess, dataplane: DataPlane) -> None:
    """Pushes the program again, which clears entries and registers. Raises ``SwitchError``."""
    connection = GrpcConnection(switch.name, switch.address, DEVICE_ID)
    connection.term = _TERM
    connection.open()
    try:
        connection.push(dataplane.p4info.message, dataplane.device_config)
    finally:
        connection.close()
