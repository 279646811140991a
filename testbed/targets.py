# SPDX-License-Identifier: Apache-2.0
"""The two switch targets: which of them there is, and which one is to be used.

``embedded``: ``python -m switch``, which paces its own ports. ``bmv2``: ``simple_switch_grpc`` of
https://github.com/p4lang/behavioral-model, whose links ``emulation.network.shaping`` shapes.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from switch.installing import is_launcher

Target = Literal["embedded", "bmv2"]

BMV2 = "simple_switch_grpc"
# Any port number will do that no topology reaches; both targets take it from the command line.
CPU_PORT = 510
DEVICE_ID = 1
# Its queues hold that many packets, whatever their size (simple_switch.cpp, `egress_buffers`).
BMV2_QUEUE_PACKETS = 64


class TargetError(Exception):
    """The wanted target is not on this machine; the message says how to get it."""


def bmv2() -> str | None:
    """Path of BMv2, None if it is not installed or its name is that of the embedded target."""
    path = shutil.which(BMV2)
    return None if path is None or is_launcher(Path(path)) else path


def choose(wanted: str) -> Target:
    """The target that ``auto``, ``embedded`` or ``bmv2`` means here; raises ``TargetError``."""
    if wanted == "embedded":
        return "embedded"
    if bmv2() is not None:
        return "bmv2"
    if wanted == "auto":
        return "embedded"
    raise TargetError(
        f"{BMV2} is not installed: use the Vagrant machine, or p4lang's packages (p4lang-bmv2,"
        " https://github.com/p4lang/behavioral-model), or --target embedded"
    )


def because(wanted: str, chosen: Target) -> str:
    """Why ``choose`` made that of what was wanted, and what it means for plans."""
    queues = (
        f" (ports of BMv2 hold {BMV2_QUEUE_PACKETS} packets, so windows are"
        f" {BMV2_QUEUE_PACKETS // 2} chunks at most)"
    )
    what = queues if chosen == "bmv2" else ""
    if wanted == chosen:
        return f"--target{what}"
    if chosen == "bmv2":
        return f"{BMV2} is on PATH{what}; --target embedded plans for the other"
    return f"no {BMV2} is on PATH{what}"
