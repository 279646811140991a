# SPDX-License-Identifier: Apache-2.0
"""Chooses a switch's defaults by the name it is started under: its own, or BMv2's.

Scripts that start `simple_switch_grpc` rely on BMv2's defaults. Under that name this target has the
same ones; under its own name it has defaults that suit interactive use better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

BMV2 = "simple_switch_grpc"
# The command of the distribution.
COMMAND = "rackhub-switch"

# Options of BMv2 that are accepted without effect, and the reason.
IGNORED: MappingProxyType[str, str] = MappingProxyType(
    {
        "--thrift-port": "this target has P4Runtime only; Thrift clients are turned away",
        "--nanolog": "this target has P4Runtime only; -L trace logs every step of packets",
        "--notifications-addr": "this target has P4Runtime only",
        "--debugger-addr": "this target has no debugger; -L trace logs every step of packets",
        "--dump-packet-data": "--pcap DIR records whole packets",
        "--max-port-count": "as many ports as -i names",
        "--max-mc-groups": "this target has no such limit",
        "--max-l1-entries": "this target has no such limit",
        "--max-l2-entries": "this target has no such limit",
        "--load-modules": "programs with additional externs are refused",
    }
)
IGNORED_FLAGS: MappingProxyType[str, str] = MappingProxyType(
    {
        "--debugger": "this target has no debugger; -L trace logs every step of packets",
        "--log-flush": "always so",
        "--disable-swap": "a push over P4Runtime always replaces the program",
    }
)
# Options of BMv2 that are refused, as ignoring them would give a switch that does something else.
REFUSED: MappingProxyType[str, str] = MappingProxyType(
    {
        "--use-files": "packets come from interfaces: give -i PORT@INTERFACE (python -m switch.stf "
        "runs packets through a program without any)",
        "--packet-in": "packets come from interfaces: give -i PORT@INTERFACE",
        "--dp-grpc-server-addr": "packets come from interfaces: give -i PORT@INTERFACE",
        "--restore-state": "what BMv2 saved cannot be read here: write entries over P4Runtime",
    }
)


@dataclass(frozen=True)
class Identity:
    """The defaults of a process, and how it reports.

    name: in usage and error messages
    bmv2: the process stands in for BMv2
    device_id, address, level: defaults of the options
    wrong: exit status for a wrong command line
    quiet: logs only warnings unless a log is asked for
    suffix: of the name of a log file
    log_bytes: largest size of a log file, None = no limit
    queue_packets: that may wait for a port (simple_switch.cpp, `egress_buffers`), None = no limit
    """

    name: str
    bmv2: bool
    device_id: int
    address: str
    level: str
    wrong: int
    quiet: bool
    suffix: str
    log_bytes: int | None
    queue_packets: int | None


# p4runtime-shell's default device, which is the lowest that the P4Runtime spec allows ("Default
# Role and Default Device ID"). Clients are not authenticated without TLS, so listen on loopback.
OWN = Identity("python -m switch", False, 1, "127.0.0.1:9559", "info", 2, False, "", None, None)


def identity_of(program: str) -> Identity:
    """Returns the identity of a process that was started as `program`, its argv[0]."""
    name = Path(program).name
    if name.startswith(BMV2):
        address, log_bytes = "0.0.0.0:9559", 5 * 1024 * 1024
        return Identity(name, True, 0, address, "trace", 1, True, ".txt", log_bytes, 64)
    if name == COMMAND:
        return replace(OWN, name=name)
    return OWN


def ready_line(identity: Identity, address: str) -> str:
    """Returns the line on standard output that reports that the switch listens."""
    return f"Server listening on {address}" if identity.bmv2 else "ready"
