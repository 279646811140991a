# SPDX-License-Identifier: Apache-2.0
"""The controller process: ``python -m controller --help``.

Prints ``ready ADDRESS`` on stdout once every switch is programmed and the job service listens.
From then on it executes orders from stdin (``controller.service.orders``), and with ``--tell``
reports jobs on stdout (``controller.service.notices``). Exits with status 0 on SIGTERM or SIGINT;
with status 1 and a line on stderr if it cannot start or write its journal.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack

from controller.jobs.journal import Journal, JournalError
from controller.jobs.registry import LEASE_SECONDS, JobTable
from controller.p4rt.connection import GrpcConnection, SwitchError
from controller.p4rt.dataplane import DataPlane
from controller.p4rt.entries import EntryError
from controller.p4rt.fabric import Fabric, FabricError
from controller.service.monitor import Monitor
from controller.service.notices import say, tell
from controller.service.orders import obey
from controller.service.servicer import JobServer, ServiceError
from protocol.runtime import REAL
from switch.cli import signals
from topologies.model.addressing import Addressing
from topologies.model.spec import TopologyError, read

CANNOT_START = (
    TopologyError,
    EntryError,
    FabricError,
    JournalError,
    ServiceError,
    SwitchError,
    OSError,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until a signal stops it; returns the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    stop = threading.Event()
    failures: list[str] = []

    def fail(why: str) -> None:
        failures.append(why)
        os.kill(os.getpid(), signal.SIGTERM)  # only a signal wakes the main thread

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with ExitStack() as stack:
        try:
            fabric = _fabric(options)
            journal = Journal(options.journal, fail)
            stack.callback(journal.close)
            term = journal.next_term()
            fabric.addressing = fabric.addressing.without(journal.gone())
            fabric.bring_up(keep=term > 1, term=term)
            stack.callback(fabric.close)
            table = JobTable(
                fabric, lease=options.lease, queue_packets=options.queue_packets, journal=journal
            )
            server = JobServer(table, options.listen)
            stack.callback(server.stop)
        except CANNOT_START as error:
            print(f"controller: {error}", file=sys.stderr)
            return 1
        monitor = Monitor(table)
        stack.callback(monitor.stop)
        monitor.start()
        say(f"ready {options.listen}")
        # Unbuffered: a thread that waits inside sys.stdin would hold its lock at exit.
        orders = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115
        REAL.thread(obey, "orders", (table, orders), daemon=True).start()
        if options.tell:
            REAL.thread(tell, "notices", (table,), daemon=True).start()
        signals.wait(stop)
    if failures:
        print(f"controller: {failures[0]}", file=sys.stderr)
    return 1 if failures else 0


def _fabric(options: argparse.Namespace) -> Fabric:
    topology = read(options.topology).seeded(options.topology_seed).topology
    connections = {}
    for given in options.switch:
        name, separator, address = given.partition("=")
        address, _, device = address.partition(",")
        if not separator or not name or not address or not (device or "1").isdigit():
            raise FabricError(f"--switch {given}: write NAME=ADDRESS or NAME=ADDRESS,DEVICE_ID")
        connections[name] = GrpcConnection(name, address, int(device or "1"))
    dataplane = DataPlane.load(options.program, options.p4info)
    return Fabric(topology, Addressing(topology), dataplane, connections)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m controller", description="Programs the switches and serves jobs."
    )
    parser.add_argument("--topology", required=True, metavar="FILE", help="topology file (YAML)")
    parser.add_argument(
        "--topology-seed",
        type=int,
        metavar="N",
        help="of which packets bad links hit; default: the topology's `seed`",
    )
    parser.add_argument(
        "--switch",
        action="append",
        default=[],
        metavar="NAME=ADDRESS[,DEVICE_ID]",
        help="where a switch serves P4Runtime, such as tor0=unix:/run/tor0.sock; device id 1"
        " unless given; once for each switch",
    )
    parser.add_argument("--program", required=True, metavar="JSON", help="program for BMv2")
    parser.add_argument("--p4info", required=True, metavar="FILE", help="p4info as text")
    parser.add_argument("--listen", required=True, metavar="unix:PATH", help="job service")
    parser.add_argument(
        "--journal",
        default=":memory:",
        metavar="FILE",
        help="where jobs are noted; a controller started again with it goes on with them, and does"
        " not disturb switches that have what they should",
    )
    parser.add_argument(
        "--lease",
        type=float,
        default=LEASE_SECONDS,
        metavar="SECONDS",
        help="a member not heard of for that long is dead (default %(default)s)",
    )
    parser.add_argument(
        "--queue-packets",
        type=int,
        metavar="N",
        help="packets that the queue of a switch port holds, for targets that count packets"
        " (BMv2: 64); windows keep within half of it",
    )
    parser.add_argument(
        "--tell",
        action="store_true",
        help="tell of jobs on standard output, with their nonces: for a pipe, not for a log",
    )
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"]
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
