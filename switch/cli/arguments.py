# SPDX-License-Identifier: Apache-2.0
"""Declares the options of the command line: names, defaults and help. `switch.cli.options` checks
them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn

from switch import __version__
from switch.cli.bmv2 import BMV2, COMMAND, IGNORED, IGNORED_FLAGS, REFUSED, Identity
from switch.cli.launcher import InstallError, install, precompile

DROP_PORT = 511
MAX_PRIORITY_QUEUES = 8
LEVELS = ("trace", "debug", "info", "warn", "error", "off")
# The newest JSON format of the BMv2 that this target is compared with.
_JSON_VERSION = "2.24"

_EXAMPLE = """example:
  %(prog)s -i 1@tor0-eth1 -i 2@tor0-eth2 --device-id 1 --no-p4 \\
      --port-rate 1=20000000 --port-queue 1=131072 \\
      -- --grpc-server-addr unix:/tmp/tor0.sock --cpu-port 510
"""


class _Parser(argparse.ArgumentParser):
    """A parser that exits with the identity's status for a wrong command line."""

    def __init__(self, identity: Identity) -> None:
        super().__init__(
            prog=identity.name,
            usage="%(prog)s [-i PORT@IF ...] [OPTION ...] (PROGRAM.json | --no-p4); "
            "--help: options",
            description="A v1model P4 switch with P4Runtime; takes simple_switch_grpc's "
            "command line.",
            epilog=_EXAMPLE,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._wrong = identity.wrong

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(self._wrong, f"{self.prog}: error: {message}\n")


class _Install(argparse.Action):
    """Implements --install-as: creates the launcher, compiles what switches share, and exits."""

    def __call__(
        self, parser: argparse.ArgumentParser, _: object, values: Any, option: str | None = None
    ) -> None:
        name, directory = values
        try:
            made = install(name, Path(directory))
            precompile()
        except InstallError as error:
            parser.exit(1, f"{parser.prog}: {option} {name} {directory}: {error}\n")
        print(f"{made} starts this target")
        parser.exit()


def command_line_of(identity: Identity) -> argparse.ArgumentParser:
    """Returns the parser of an identity's command line."""
    parser = _Parser(identity)
    whose = f" ({COMMAND})" if identity.bmv2 else ""
    parser.add_argument(
        "-v", "--version", action="version", version=f"%(prog)s {__version__}{whose}"
    )
    parser.add_argument(
        "--json-version",
        action="version",
        version=_JSON_VERSION,
        help="print the newest format of programs that is known",
    )
    parser.add_argument(
        "--install-as",
        nargs=2,
        action=_Install,
        metavar=("NAME", "DIR"),
        help=f"make DIR/NAME start this with BMv2's defaults (NAME: {BMV2}), and end",
    )
    parser.add_argument("program", nargs="?", type=Path, help="BMv2 JSON to start with")
    parser.add_argument("--no-p4", action="store_true", help="wait for a program over P4Runtime")
    parser.add_argument(
        "-i",
        "--interface",
        action="append",
        default=[],
        metavar="PORT@IF",
        help="an interface as a port; repeatable",
    )
    parser.add_argument(
        "--device-id",
        type=int,
        default=identity.device_id,
        metavar="N",
        help=f"of P4Runtime (default {identity.device_id})",
    )
    parser.add_argument(
        "--pcap",
        type=Path,
        nargs="?",
        const=Path(),
        metavar="DIR",
        help="write a pcap file per interface (without DIR: where the switch was started)",
    )
    _add_logging(parser, identity)
    for option, reason in IGNORED.items():
        parser.add_argument(option, metavar="X", help=f"ignored: {reason}")
    for option, reason in IGNORED_FLAGS.items():
        parser.add_argument(option, action="store_true", help=f"ignored: {reason}")
    for option in REFUSED:
        parser.add_argument(option, metavar="X", help=argparse.SUPPRESS)
    _add_ports(parser, identity)
    _add_target(parser, identity)
    return parser


def _add_logging(parser: argparse.ArgumentParser, identity: Identity) -> None:
    stream, default = "error also with --log-file", "standard error"
    if identity.quiet:
        stream, default = "output", "none"
    parser.add_argument("--log-console", action="store_true", help=f"log to standard {stream}")
    parser.add_argument(
        "--log-file",
        type=Path,
        metavar="FILE",
        help=f"log to FILE{identity.suffix} (default: {default})",
    )
    parser.add_argument(
        "-L",
        "--log-level",
        choices=LEVELS,
        default=identity.level,
        help=f"default {identity.level}; trace: every step of every packet, slowly",
    )
    size = "it grows" if identity.log_bytes is None else str(identity.log_bytes)
    parser.add_argument(
        "--log-file-max-size",
        type=int,
        default=identity.log_bytes,
        metavar="BYTES",
        help=f"largest log file, then a new one begins (default: {size})",
    )
    parser.add_argument(
        "--log-file-max-files",
        type=int,
        default=3,
        metavar="N",
        help="older log files that are kept (default 3)",
    )


def _add_ports(parser: argparse.ArgumentParser, identity: Identity) -> None:
    ports = parser.add_argument_group("ports")
    ports.add_argument(
        "--port-rate",
        action="append",
        default=[],
        metavar="PORT=BITS",
        help="bits per second that leave the port (default: as fast as the interface takes them)",
    )
    ports.add_argument(
        "--port-queue",
        action="append",
        default=[],
        metavar="PORT=BYTES",
        help="bytes that may wait for the port (default 1048576)",
    )
    ports.add_argument(
        "--queue-packets",
        type=int,
        default=identity.queue_packets,
        metavar="N",
        help="packets of one priority that may wait for each port, 0 = no limit (default "
        f"{identity.queue_packets or 'no limit'})",
    )
    ports.add_argument(
        "--port-rate-in",
        action="append",
        default=[],
        metavar="PORT=BITS",
        help="bits per second of the link that ends at the port: frames are held until their last "
        "bit would arrive (for senders whose shaper releases a frame at its first bit)",
    )
    ports.add_argument(
        "--plain", action="store_true", help="packet by packet: no offload, neither in nor out"
    )
    ports.add_argument("--no-join", action="store_true", help="send every packet as its own frame")


def _add_target(parser: argparse.ArgumentParser, identity: Identity) -> None:
    target = parser.add_argument_group("target options (after --)")
    target.add_argument(
        "--grpc-server-addr",
        default=identity.address,
        metavar="ADDR",
        help=f"host:port or unix:/path (default {identity.address})",
    )
    target.add_argument("--grpc-server-ssl", action="store_true", help="TLS; needs cert and key")
    target.add_argument("--grpc-server-cert", type=Path, metavar="PEM")
    target.add_argument("--grpc-server-key", type=Path, metavar="PEM")
    target.add_argument("--grpc-server-cacert", type=Path, metavar="PEM")
    target.add_argument("--grpc-server-with-client-auth", action="store_true")
    target.add_argument("--cpu-port", type=int, metavar="N", help="port of packet-in and -out")
    target.add_argument(
        "--drop-port", type=int, default=DROP_PORT, metavar="N", help=f"{DROP_PORT}, nothing else"
    )
    target.add_argument(
        "--priority-queues",
        type=int,
        default=1,
        metavar="N",
        help="queues per port, 1 (default) to 8: packets of another priority are dropped",
    )
