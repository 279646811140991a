# SPDX-License-Identifier: Apache-2.0
"""Runs the embedded target as a process of its own: `rackhub-switch` or `python -m switch`.

Prints the line "ready" on standard output when P4Runtime listens and the ports are up. SIGUSR1
prints the ports' counters as a line of JSON, {"ports": {NUMBER: {COUNTER: VALUE}}}. SIGTERM and
SIGINT write the counters to the log and end the process with status 0. Status 1: it could not start
(the reason is on standard error); 2: wrong command line. A process started as simple_switch_grpc
has BMv2's defaults and conventions instead (`switch.cli.bmv2`).
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue

from google.rpc import code_pb2

from switch.cli import logs, signals
from switch.cli.bmv2 import identity_of, ready_line
from switch.cli.options import Options, parse
from switch.cli.thrift_port import ThriftPort
from switch.compiler import CompilerError
from switch.loader import load_program
from switch.p4runtime.device import Device
from switch.p4runtime.errors import P4RuntimeError
from switch.p4runtime.service.server import AddressError, is_local, serve
from switch.pipeline import Pipeline, PipelineError
from switch.ports import Ports, PortsError
from switch.program.errors import ProgramError, UnsupportedConstruct

log = logging.getLogger("switch")
# Messages of the P4 program: log_msg(), failed assertions.
_program_log = logging.getLogger("switch.program")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a switch until SIGTERM or SIGINT; returns the exit status."""
    if arguments is None:
        identity = identity_of(sys.argv[0])
        options = parse(sys.argv[1:], identity)
    else:
        options = parse(arguments)
    if options.identity.bmv2:
        _take_name(options.identity.name)
    try:
        logs.start(options)
    except OSError as error:
        print(f"switch: cannot write the log: {error}", file=sys.stderr)
        return 1
    for option in options.ignored:
        log.warning("ignored: %s", option)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        with ExitStack() as stack:
            _run(options, stop, stack)
    except (AddressError, CompilerError, PipelineError, PortsError, ProgramError, OSError) as error:
        log.error("%s", error)
        if not logs.heard(options):
            print(f"switch: {error}", file=sys.stderr)
        return 1
    return 0


def _run(options: Options, stop: threading.Event, stack: ExitStack) -> None:
    pipeline = None
    if options.program is not None:
        pipeline = _load(options.program, options)
    device = Device(
        options.device_id,
        options.cpu_port,
        pipeline=pipeline,
        traced=options.traced,
        priority_queues=options.priority_queues,
        like_bmv2=options.identity.bmv2,
    )
    stack.callback(device.close)
    ports = Ports(
        pipeline,
        options.ports,
        cpu_port=options.cpu_port,
        pcap_dir=options.pcap,
        plain=options.plain,
        on_packet_in=device.packet_in,
    )

    def listen(new: Pipeline) -> None:
        new.set_log(_program_log.info)
        if options.traced:
            logs.trace(new)

    if pipeline is not None:
        listen(pipeline)

    def commit(new: Pipeline) -> None:
        listen(new)
        ports.attach(new)

    device.on_commit = commit

    def packet_out(port: int, frame: bytes) -> None:
        try:
            ports.packet_out(frame)
        except PortsError as error:
            raise P4RuntimeError(code_pb2.RESOURCE_EXHAUSTED, str(error)) from error

    device.on_packet_out = packet_out
    ports.start()
    stack.callback(_stop_ports, ports, device)

    # A signal can interrupt its own handler, and printing is not reentrant; SimpleQueue.put() is.
    requests: SimpleQueue[bool] = SimpleQueue()
    printer = threading.Thread(target=_print_counters, args=(requests, ports), name="counters")
    printer.start()
    stack.callback(printer.join)
    stack.callback(requests.put, False)
    signal.signal(signal.SIGUSR1, lambda *_: requests.put(True))
    if options.tls is None and not is_local(options.address):
        log.warning(
            "P4Runtime on %s has no TLS: any host that reaches it controls this switch",
            options.address,
        )
    server = serve(device, options.address, options.tls)
    stack.callback(server.stop)
    log.info(
        "device %d ready: P4Runtime on %s, ports %s",
        options.device_id,
        server.address,
        ", ".join(f"{n}@{one.interface}" for n, one in sorted(options.ports.items())) or "none",
    )
    if options.thrift_port is not None:
        stack.callback(ThriftPort(options.thrift_port).close)
    print(ready_line(options.identity, server.address), flush=True)
    signals.wait(stop)
    log.info("stopping")


def _print_counters(requests: SimpleQueue[bool], ports: Ports) -> None:
    """Prints the ports' counters for each request, until one is False."""
    with suppress(BrokenPipeError):  # the reader of standard output has ended
        while requests.get():
            counters = {number: asdict(one) for number, one in ports.statistics().items()}
            print(json.dumps({"ports": counters}), flush=True)


def _load(path: Path, options: Options) -> Pipeline:
    """Loads and compiles a program.

    Raises ProgramError, CompilerError, PipelineError, OSError (the cache is not writable).
    """
    try:
        program = load_program(path)
    except OSError as error:
        raise ProgramError(f"cannot read the program {path}: {error.strerror}") from error
    except UnsupportedConstruct as error:
        raise ProgramError(f"{path}: {error}") from error
    try:
        return Pipeline(program, traced=options.traced, priority_queues=options.priority_queues)
    except UnsupportedConstruct as error:  # found by the code generator only
        raise ProgramError(f"{path}: {error}") from error


def _stop_ports(ports: Ports, device: Device) -> None:
    """Writes the counters to the log and stops the ports."""
    for number, statistics in sorted(ports.statistics().items()):
        counts = " ".join(f"{name}={value}" for name, value in asdict(statistics).items() if value)
        log.info("port %d: %s", number, counts or "nothing")
    log.info(
        "controller: packet_ins=%d packet_ins_lost=%d packet_outs=%d",
        device.packet_ins,
        device.packet_ins_lost,
        device.packet_outs,
    )
    if device.pipeline is not None:
        counts = " ".join(f"{name}={value}" for name, value in device.pipeline.stats().items())
        log.info("program: %s", counts)
    ports.stop()


def _take_name(name: str) -> None:
    """Names this process as BMv2, so that scripts find and end it by name (killall, pkill)."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name)


if __name__ == "__main__":
    sys.exit(main())
