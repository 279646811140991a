# SPDX-License-Identifier: Apache-2.0
"""The command line of `python -m switch`: that of simple_switch_grpc, with ports' rates and queues.

What comes after `--` are the target's options there; here the `--` may be left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from switch.p4runtime import AddressError, Tls, socket_path

# simple_switch_grpc's is 0.0.0.0:9559; nobody is authenticated without TLS, so stay on the machine.
DEFAULT_ADDRESS = "127.0.0.1:9559"
# p4runtime-shell's default, and the lowest the P4Runtime spec allows ("Default Role and Default
# Device ID").
DEFAULT_DEVICE_ID = 1
DROP_PORT = 511
MAX_PRIORITY_QUEUES = 8
LEVELS = ("trace", "debug", "info", "warn", "error", "off")
_MAX_INTERFACE_NAME = 15  # IFNAMSIZ without the final zero
_IGNORED = {
    "--thrift-port": "this target has P4Runtime only",
    "--nanolog": "this target has P4Runtime only",
    "--notifications-addr": "this target has P4Runtime only",
    "--log-file-max-size": "one file, which grows",
    "--log-file-max-files": "one file, which grows",
    "--max-port-count": "as many ports as -i names",
    "--max-mc-groups": "this target has no such limit",
    "--max-l1-entries": "this target has no such limit",
    "--max-l2-entries": "this target has no such limit",
}
_IGNORED_FLAGS = {
    "--log-flush": "always so",
    "--disable-swap": "a push over P4Runtime always replaces the program",
}

_EXAMPLE = """example:
  python -m switch -i 1@tor0-eth1 -i 2@tor0-eth2 --device-id 1 --no-p4 \\
      --port-rate 1=20000000 --port-queue 1=131072 \\
      -- --grpc-server-addr unix:/tmp/tor0.sock --cpu-port 510
"""


@dataclass(frozen=True)
class PortSettings:
    """One `-i PORT@INTERFACE`.

    rate, rate_in: bit/s, None = unlimited; queue_bytes: None = default. See `PortOptions`.
    """

    interface: str
    rate: int | None = None
    queue_bytes: int | None = None
    rate_in: int | None = None


@dataclass(frozen=True)
class Options:
    """A checked command line. ignored: options of BMv2 that were given and mean nothing here."""

    ports: dict[int, PortSettings]
    device_id: int
    program: Path | None
    address: str
    tls: Tls | None
    cpu_port: int | None
    pcap: Path | None
    priority_queues: int
    plain: bool
    join: bool
    log_console: bool
    log_file: Path | None
    log_level: str
    ignored: list[str] = field(default_factory=list)

    @property
    def traced(self) -> bool:
        """Whether programs tell what becomes of every packet."""
        return self.log_level == "trace"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m switch",
        usage="%(prog)s [-i PORT@IF ...] [OPTION ...] (PROGRAM.json | --no-p4); --help: options",
        description="A v1model P4 switch with P4Runtime; takes simple_switch_grpc's command line.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
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
        default=DEFAULT_DEVICE_ID,
        metavar="N",
        help=f"of P4Runtime (default {DEFAULT_DEVICE_ID}; BMv2's is 0)",
    )
    parser.add_argument("--pcap", type=Path, metavar="DIR", help="write a pcap file per interface")
    parser.add_argument(
        "--log-console", action="store_true", help="log to standard error also with --log-file"
    )
    parser.add_argument(
        "--log-file", type=Path, metavar="FILE", help="log there (default: standard error)"
    )
    parser.add_argument(
        "-L",
        "--log-level",
        choices=LEVELS,
        default="info",
        help="default info; trace: all that becomes of every packet, slowly",
    )
    for option, reason in _IGNORED.items():
        parser.add_argument(option, metavar="X", help=f"ignored: {reason}")
    for option, reason in _IGNORED_FLAGS.items():
        parser.add_argument(option, action="store_true", help=f"ignored: {reason}")

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
        help="bytes that may wait for the port",
    )
    ports.add_argument(
        "--port-rate-in",
        action="append",
        default=[],
        metavar="PORT=BITS",
        help="bits per second of the link that ends at the port: what comes is held until its last "
        "bit would be there (for senders whose shaper lets it go when its first bit leaves)",
    )
    ports.add_argument(
        "--plain", action="store_true", help="packet by packet: no offload, neither in nor out"
    )
    ports.add_argument("--no-join", action="store_true", help="send every packet as its own frame")

    target = parser.add_argument_group("target options (after --)")
    target.add_argument(
        "--grpc-server-addr",
        default=DEFAULT_ADDRESS,
        metavar="ADDR",
        help=f"host:port or unix:/path (default {DEFAULT_ADDRESS})",
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
    return parser


def _version() -> str:
    """Of the distribution that this is part of."""
    try:
        return metadata.version("rackhub")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def parse(arguments: Sequence[str]) -> Options:
    """Options of a command line (without the program's name).

    Exits with status 2 and a message on standard error if they are wrong, with 0 for --help and
    --version.
    """
    rest = list(arguments)
    if "--" in rest:
        rest.remove("--")
    parser = _parser()
    given = parser.parse_args(rest)
    try:
        return _check(given)
    except ValueError as error:
        parser.error(str(error))


def _check(given: argparse.Namespace) -> Options:
    if given.program is None and not given.no_p4:
        raise ValueError("give a program (BMv2 JSON), or --no-p4 to wait for one over P4Runtime")
    if given.program is not None and given.no_p4:
        raise ValueError("--no-p4 and a program exclude each other")
    if given.device_id < 0:
        raise ValueError(f"--device-id {given.device_id}: must not be negative")
    if given.drop_port != DROP_PORT:
        raise ValueError(f"--drop-port {given.drop_port}: this target's is always {DROP_PORT}")
    if not 1 <= given.priority_queues <= MAX_PRIORITY_QUEUES:
        raise ValueError(
            f"--priority-queues {given.priority_queues}: a port has 1 to {MAX_PRIORITY_QUEUES}"
        )
    if given.cpu_port is not None:
        _port_number(str(given.cpu_port), "--cpu-port")
        if given.cpu_port == 0:
            raise ValueError("--cpu-port 0 is not a valid value")
    try:
        socket_path(given.grpc_server_addr)
    except AddressError as error:
        raise ValueError(f"--grpc-server-addr: {error}") from error
    return Options(
        ports=_ports(given),
        device_id=given.device_id,
        program=given.program,
        address=given.grpc_server_addr,
        tls=_tls(given),
        cpu_port=given.cpu_port,
        pcap=given.pcap,
        priority_queues=given.priority_queues,
        plain=given.plain,
        join=not given.no_join,
        log_console=given.log_console,
        log_file=given.log_file,
        log_level=given.log_level,
        ignored=[
            f"{one} ({reason})"
            for one, reason in (_IGNORED | _IGNORED_FLAGS).items()
            if getattr(given, one[2:].replace("-", "_")) not in (None, False)
        ],
    )


def _ports(given: argparse.Namespace) -> dict[int, PortSettings]:
    interfaces: dict[int, str] = {}
    for text in given.interface:
        number_text, at, name = text.partition("@")
        if not at or not name:
            raise ValueError(f"-i {text}: write PORT@INTERFACE, such as 1@eth0")
        number = _port_number(number_text, f"-i {text}")
        if len(name) > _MAX_INTERFACE_NAME or "/" in name:
            raise ValueError(f"-i {text}: {name!r} is no interface name")
        if number in interfaces:
            raise ValueError(f"-i {text}: port {number} is {interfaces[number]} already")
        if name in interfaces.values():
            raise ValueError(f"-i {text}: interface {name} has a port already")
        if number == given.cpu_port:
            raise ValueError(f"-i {text}: port {number} is the CPU port")
        interfaces[number] = name
    rates = _per_port(given.port_rate, "--port-rate", interfaces)
    queues = _per_port(given.port_queue, "--port-queue", interfaces)
    rates_in = _per_port(given.port_rate_in, "--port-rate-in", interfaces)
    return {
        number: PortSettings(name, rates.get(number), queues.get(number), rates_in.get(number))
        for number, name in interfaces.items()
    }


def _port_number(text: str, where: str) -> int:
    if not text.isdecimal() or int(text) >= DROP_PORT:
        raise ValueError(f"{where}: {text or 'nothing'} is no port number (0..{DROP_PORT - 1})")
    return int(text)


def _per_port(texts: Sequence[str], option: str, interfaces: dict[int, str]) -> dict[int, int]:
    found: dict[int, int] = {}
    for text in texts:
        number_text, equals, amount = text.partition("=")
        number = _port_number(number_text, f"{option} {text}")
        if not equals or not amount.isdecimal() or int(amount) == 0:
            raise ValueError(f"{option} {text}: write PORT=NUMBER, a number above 0")
        if number not in interfaces:
            raise ValueError(f"{option} {text}: there is no -i {number}@...")
        if number in found:
            raise ValueError(f"{option} {text}: port {number} is given twice")
        found[number] = int(amount)
    return found


def _tls(given: argparse.Namespace) -> Tls | None:
    files = (given.grpc_server_cert, given.grpc_server_key, given.grpc_server_cacert)
    if not given.grpc_server_ssl:
        if any(files) or given.grpc_server_with_client_auth:
            raise ValueError("certificates are given, but not --grpc-server-ssl")
        return None
    if given.grpc_server_cert is None or given.grpc_server_key is None:
        raise ValueError("--grpc-server-ssl needs --grpc-server-cert and --grpc-server-key")
    if given.grpc_server_with_client_auth and given.grpc_server_cacert is None:
        raise ValueError("--grpc-server-with-client-auth needs --grpc-server-cacert")
    try:
        certificate, key, root = (None if one is None else one.read_bytes() for one in files)
    except OSError as error:
        raise ValueError(f"cannot read {error.filename}: {error.strerror}") from error
    assert certificate is not None
    assert key is not None
    return Tls(key, certificate, root, given.grpc_server_with_client_auth)
