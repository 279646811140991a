# SPDX-License-Identifier: Apache-2.0
"""Checks the command line of a switch: that of simple_switch_grpc, with rates and queues of ports.

BMv2 takes the target's options after `--`; here the `--` may be left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from switch.cli.arguments import DROP_PORT, MAX_PRIORITY_QUEUES, command_line_of
from switch.cli.bmv2 import IGNORED, IGNORED_FLAGS, OWN, REFUSED, Identity
from switch.p4runtime.service.server import AddressError, Tls, socket_path
from switch.ports import PortOptions

_MAX_INTERFACE_NAME = 15  # IFNAMSIZ without the final zero


@dataclass(frozen=True)
class Options:
    """A checked command line.

    log_bytes, log_files: size of one log file, None = no limit; how many older ones are kept
    ignored: options given without effect, with the reason
    """

    identity: Identity
    ports: dict[int, PortOptions]
    device_id: int
    program: Path | None
    address: str
    tls: Tls | None
    cpu_port: int | None
    pcap: Path | None
    priority_queues: int
    plain: bool
    log_console: bool
    log_file: Path | None
    log_level: str
    log_bytes: int | None
    log_files: int
    thrift_port: int | None
    ignored: list[str] = field(default_factory=list)

    @property
    def traced(self) -> bool:
        """True if programs trace every packet, which requires a log."""
        return self.log_level == "trace" and self.logs

    @property
    def logs(self) -> bool:
        """True if there is a log, which BMv2 writes only on request."""
        return self.log_console or self.log_file is not None or not self.identity.quiet


def parse(arguments: Sequence[str], identity: Identity = OWN) -> Options:
    """Parses a command line (without the program's name).

    Exits with the identity's status and a message on standard error if it is wrong, with 0 for
    --help and the like.
    """
    rest = list(arguments)
    if "--" in rest:
        rest.remove("--")
    parser = command_line_of(identity)
    given = parser.parse_args(rest)
    try:
        return _check(given, identity)
    except ValueError as error:
        parser.error(str(error))


def _check(given: argparse.Namespace, identity: Identity) -> Options:
    for option, instead in REFUSED.items():
        if _value(given, option) is not None:
            raise ValueError(f"{option} does not exist here: {instead}")
    ignored = [
        f"{one} ({reason})"
        for one, reason in (IGNORED | IGNORED_FLAGS).items()
        if _value(given, one) not in (None, False)
    ]
    if given.program is None and not given.no_p4:
        raise ValueError("give a program (BMv2 JSON), or --no-p4 to wait for one over P4Runtime")
    if given.program is not None and given.no_p4:
        if not identity.bmv2:
            raise ValueError("--no-p4 and a program exclude each other")
        ignored.append(f"{given.program} (--no-p4 is given, too)")
        given.program = None
    if given.device_id < 0:
        raise ValueError(f"--device-id {given.device_id}: must not be negative")
    if given.drop_port != DROP_PORT:
        raise ValueError(f"--drop-port {given.drop_port}: this target's is always {DROP_PORT}")
    if not 1 <= given.priority_queues <= MAX_PRIORITY_QUEUES:
        raise ValueError(
            f"--priority-queues {given.priority_queues}: a port has 1 to {MAX_PRIORITY_QUEUES}"
        )
    if not 0 <= (given.queue_packets or 0) < 1 << 32:
        raise ValueError(
            f"--queue-packets {given.queue_packets}: 0 to {(1 << 32) - 1}, 0 = no limit"
        )
    if given.cpu_port is not None:
        _port_number(str(given.cpu_port), "--cpu-port")
        if given.cpu_port == 0:
            raise ValueError("--cpu-port 0 is not a valid value")
    if given.log_file_max_size is not None and given.log_file_max_size <= 0:
        raise ValueError(f"--log-file-max-size {given.log_file_max_size}: must be above 0")
    if given.log_file_max_files < 0:
        raise ValueError(f"--log-file-max-files {given.log_file_max_files}: must not be negative")
    if identity.bmv2 and given.pcap is not None and not given.pcap.is_dir():
        raise ValueError(f"--pcap {given.pcap}: no such directory")
    if identity.bmv2 and not given.grpc_server_ssl:
        ignored += _unused_tls(given)
    try:
        socket_path(given.grpc_server_addr)
    except AddressError as error:
        raise ValueError(f"--grpc-server-addr: {error}") from error
    return Options(
        identity=identity,
        ports=_ports(given),
        device_id=given.device_id,
        program=given.program,
        address=given.grpc_server_addr,
        tls=_tls(given),
        cpu_port=given.cpu_port,
        pcap=given.pcap,
        priority_queues=given.priority_queues,
        plain=given.plain,
        log_console=given.log_console,
        log_file=_log_file(given, identity),
        log_level=given.log_level,
        log_bytes=given.log_file_max_size,
        log_files=given.log_file_max_files,
        thrift_port=_thrift_port(given.thrift_port) if identity.bmv2 else None,
        ignored=ignored,
    )


def _value(given: argparse.Namespace, option: str) -> object:
    return getattr(given, option.removeprefix("--").replace("-", "_"))


def _log_file(given: argparse.Namespace, identity: Identity) -> Path | None:
    if given.log_file is None:
        return None
    path: Path = given.log_file
    return path.with_name(path.name + identity.suffix)


def _thrift_port(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ValueError(f"--thrift-port {text}: write a TCP port, 1 to 65535")
    return int(text)


def _ports(given: argparse.Namespace) -> dict[int, PortOptions]:
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
        number: PortOptions(
            name,
            rate=rates.get(number),
            queue_bytes=queues.get(number, PortOptions.queue_bytes),
            queue_packets=given.queue_packets or None,
            rate_in=rates_in.get(number),
            join=not given.no_join,
        )
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


_TLS = ("--grpc-server-cert", "--grpc-server-key", "--grpc-server-cacert")
_TLS_CLIENTS = "--grpc-server-with-client-auth"


def _unused_tls(given: argparse.Namespace) -> list[str]:
    """Clears the TLS options, which BMv2 ignores without --grpc-server-ssl; returns their
    descriptions."""
    unused = [one for one in (*_TLS, _TLS_CLIENTS) if _value(given, one) not in (None, False)]
    given.grpc_server_cert = given.grpc_server_key = given.grpc_server_cacert = None
    given.grpc_server_with_client_auth = False
    return [f"{one} (without --grpc-server-ssl there is no TLS)" for one in unused]


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
