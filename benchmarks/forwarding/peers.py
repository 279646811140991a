# SPDX-License-Identifier: Apache-2.0
"""Non-P4 routers with the same table: Linux, and Open vSwitch in user space."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.common import BenchError, pin
from benchmarks.forwarding import routing, times, traffic
from benchmarks.forwarding.times import Times
from emulation.nodes.processes import describe
from observability.processinfo import tail

OVS = "ovs-vswitchd"
_OVS_TOOLS = (OVS, "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl")
_OVS_SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
_TUN = "/dev/net/tun"
_BRIDGE = "br0"
_OPENFLOW = "OpenFlow13"
_RPS = "/sys/class/net/{}/queues/rx-0/rps_cpus"
_COMMAND_SECONDS = 60.0
_STOP_SECONDS = 10.0


def has_linux() -> bool:
    """Tells whether this process may choose the forwarding core."""
    try:
        Path(_RPS.format("lo")).write_text("0")
    except OSError:
        return False
    return True


def has_ovs() -> bool:
    """Tells whether Open vSwitch is installed and may create bridge interfaces."""
    installed = _OVS_SCHEMA.exists() and all(map(shutil.which, _OVS_TOOLS))
    return installed and os.access(_TUN, os.R_OK | os.W_OK)


@contextlib.contextmanager
def linux(interfaces: Sequence[str], core: int) -> Iterator[Callable[[], Times]]:
    """Lets the kernel forward between the interfaces on one core, chosen by receive packet steering
    (RPS). The core's software interrupts count as its time.

    The interfaces cannot be used otherwise afterwards. Raises BenchError.
    """
    Path("/proc/sys/net/ipv4/ip_early_demux").write_text("0")  # routers need no socket lookup
    setup = []
    for port, name in enumerate(interfaces):
        for scope in ("all", name):
            Path(f"/proc/sys/net/ipv4/conf/{scope}/rp_filter").write_text("0")
            Path(f"/proc/sys/net/ipv4/conf/{scope}/send_redirects").write_text("0")
        setup += [
            f"link set {name} address {routing.mac(traffic.ROUTER_MAC)}",
            f"address replace {_hop(port, 1)}/30 dev {name}",
            f"neighbour replace {_hop(port, 2)} lladdr"
            f" {routing.mac(traffic.WORKER_MACS + port)} dev {name} nud permanent",
        ]
        Path(_RPS.format(name)).write_text(_mask(core))
    routes = [
        f"route replace {routing.text(one.address)}/{one.length} via {_hop(one.port, 2)}"
        for one in routing.table()
    ]
    _run(["ip", "-batch", "-"], "\n".join([*setup, *routes]))
    forwarding = Path("/proc/sys/net/ipv4/ip_forward")
    forwarding.write_text("1")
    try:
        yield partial(times.of_softirqs, core)
    finally:
        forwarding.write_text("0")


@contextlib.contextmanager
def ovs(
    interfaces: Sequence[str], folder: Path, cores: tuple[int, int]
) -> Iterator[Callable[[], Times]]:
    """Runs a private Open vSwitch, with database and sockets in a folder, that forwards in user
    space (`datapath_type=netdev`) through packet sockets.

    Args:
        cores: The switch's, and this process's own.

    Raises:
        BenchError
    """
    database, control = folder / "db", f"unix:{folder}/db.sock"
    _run(["ovsdb-tool", "create", str(database), str(_OVS_SCHEMA)])
    server = ["ovsdb-server", str(database), f"--remote=punix:{folder}/db.sock"]
    switch = [OVS, control, "--disable-system"]
    quiet = ["-vconsole:warn", "-vsyslog:off"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_started([*server, *quiet], folder / "server.log"))
        tool = ["ovs-vsctl", "--retry", "--timeout=30", f"--db={control}"]
        _run([*tool, "--no-wait", "init"])
        pin(cores[0])  # inherited by the process and all its threads
        try:
            log = folder / "switch.log"
            process = stack.enter_context(_started([*switch, *quiet], log))
        finally:
            pin(cores[1])
        made = ["add-br", _BRIDGE, "--", "set", "bridge", _BRIDGE, "datapath_type=netdev",
                f"protocols={_OPENFLOW}", "fail_mode=secure"]  # fmt: skip
        for port, name in enumerate(interfaces, 1):
            made += ["--", "add-port", _BRIDGE, name]
            made += ["--", "set", "interface", name, f"ofport_request={port}"]
        try:
            _run([*tool, *made])
            address = f"unix:{folder}/{_BRIDGE}.mgmt"
            _run(["ovs-ofctl", "-O", _OPENFLOW, "add-flows", address, "-"], "\n".join(flows()))
        except BenchError as error:
            raise BenchError(f"{error}\n{tail(log)}") from error
        yield partial(times.of_process, process.pid)
        if process.poll() is not None:
            raise BenchError(f"{OVS} {describe(process.returncode)}:\n{tail(log)}")


def flows() -> list[str]:
    """Returns the table as OpenFlow rules, longer prefixes first."""
    router = routing.mac(traffic.ROUTER_MAC)
    return [
        f"priority={one.length},ip,nw_dst={routing.text(one.address)}/{one.length},"
        f"actions=mod_dl_src:{router},"
        f"mod_dl_dst:{routing.mac(traffic.WORKER_MACS + one.port)},"
        f"dec_ttl,output:{one.port + 1}"
        for one in routing.table()
    ]


@contextlib.contextmanager
def _started(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    folder = str(log.parent)
    own = {"OVS_RUNDIR": folder, "OVS_LOGDIR": folder, "OVS_DBDIR": folder}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder,
            env={**os.environ, **own},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _run(command: Sequence[str], given: str = "") -> None:
    try:
        result = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=_COMMAND_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{command[0]} took longer than {_COMMAND_SECONDS:g} s") from error
    if result.returncode != 0:
        trace = "\n".join(result.stderr.strip().splitlines()[-3:])
        raise BenchError(f"{command[0]} {describe(result.returncode)}:\n{trace}")


def _hop(port: int, host: int) -> str:
    """Returns one of the four addresses between the router and a port's host; 1 is the router's."""
    return f"192.0.2.{4 * port + host}"


def _mask(core: int) -> str:
    """Formats a one-core mask for the kernel: comma-separated 32-bit hexadecimal words."""
    words = [f"{1 << core % 32:x}", *["00000000"] * (core // 32)]
    return ",".join(words)
