# SPDX-License-Identifier: Apache-2.0
"""Finds the installed switch targets and chooses one.

``embedded``: ``python -m switch``, which paces its own ports. ``bmv2``: ``simple_switch_grpc`` of
https://github.com/p4lang/behavioral-model, whose links ``emulation.network.shaping`` shapes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from observability.messages.jobs import Target as Target
from protocol.errors import Error
from switch.cli.launcher import is_launcher

BMV2 = "simple_switch_grpc"
# A port number beyond every topology's; both targets take it from the command line.
CPU_PORT = 510
DEVICE_ID = 1
# Packets in a queue of BMv2, of any size (simple_switch.cpp, `egress_buffers`).
BMV2_QUEUE_PACKETS = 64


class TargetError(Error):
    """The requested target is not installed; the text says how to get it."""


def bmv2() -> str | None:
    """Returns the path of BMv2; None if it is not installed, or a launcher of the embedded target
    has its name."""
    path = shutil.which(BMV2)
    return None if path is None or is_launcher(Path(path)) else path


def choose(wanted: str) -> Target:
    """Returns the target for ``auto``, ``embedded`` or ``bmv2``; raises ``TargetError``."""
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
    """Explains the result of ``choose`` and what it means for plans."""
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
