# SPDX-License-Identifier: Apache-2.0
"""The sandbox that an emulated testbed lives in: network, mount and PID namespaces of its own.

``command(...)`` gives the command line that starts a program as the first process of a new
sandbox. When that process ends, however it ends, the kernel ends every other process in it, and
with them go all interfaces (namespaces(7), pid_namespaces(7)). As an ordinary user this works
through a user namespace where the system allows them, else through sudo.

A sandbox's first process calls ``settle()`` before anything looks at ``/sys``.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys

_UNSHARE = ["unshare", "-n", "-m", "-p", "-f", "--mount-proc", "--kill-child"]
_UNSHARE_AS_USER = ["unshare", "-U", "-r", *_UNSHARE[1:]]
# What Mininet needs of a namespace; allowed user namespaces without these powers exist (AppArmor).
_PROBE = "mount -t sysfs sysfs /sys && ip link add probe0 type veth peer name probe1"
_TOOLS = {
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "ip": "iproute2",
    "tc": "iproute2",
    "ethtool": "ethtool",
    "mnexec": "mininet",
}


class SandboxError(Exception):
    """No sandbox can be had on this machine; the message says why and what to do."""


def _path() -> str:
    """PATH with the folders where administration tools are, which users often lack."""
    parts = os.environ.get("PATH", "/usr/bin:/bin").split(":")
    return ":".join(parts + [p for p in ("/usr/sbin", "/sbin") if p not in parts])


def missing_tools() -> dict[str, str]:
    """Commands that an emulated testbed needs and this machine lacks, with their Debian package."""
    return {
        tool: package
        for tool, package in _TOOLS.items()
        if shutil.which(tool, path=_path()) is None
    }


def _refusal(prefix: list[str]) -> str | None:
    """Why a sandbox started with ``prefix`` would not do; None if it would."""
    result = subprocess.run(
        [*prefix, "sh", "-c", _PROBE],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": _path()},
    )
    if result.returncode == 0:
        return None
    return (result.stderr.strip().splitlines() or [f"exit status {result.returncode}"])[-1]


@functools.cache
def way_in() -> tuple[str, ...]:
    """The command prefix that enters a sandbox: as root, in a user namespace, or through sudo.

    Raises ``SandboxError`` when none works. Tries them for real, so it costs some milliseconds.
    """
    lacking = missing_tools()
    if lacking:
        packages = " ".join(sorted(set(lacking.values())))
        raise SandboxError(
            f"not installed: {', '.join(lacking)}; run `make setup`, or: apt-get install {packages}"
        )
    if os.geteuid() == 0:
        refusal = _refusal(_UNSHARE)
        if refusal is None:
            return tuple(_UNSHARE)
        raise SandboxError(
            f"root may not make namespaces here: {refusal}. In a container, start it with"
            " `--privileged` (or with --cap-add SYS_ADMIN --cap-add NET_ADMIN)"
        )
    refusal = _refusal(_UNSHARE_AS_USER)
    if refusal is None:
        return tuple(_UNSHARE_AS_USER)
    if shutil.which("sudo") is None:
        raise SandboxError(
            f"user namespaces are not to be had ({refusal}) and sudo is not installed: run as root,"
            " or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, on Ubuntu 24.04"
            " and later kernel.apparmor_restrict_unprivileged_userns=0)"
        )
    print(f"user namespaces are not to be had ({refusal}): using sudo", file=sys.stderr, flush=True)
    if subprocess.run(["sudo", "-v"]).returncode != 0:
        raise SandboxError("sudo refused; run as root, or allow user namespaces")
    # sudo resets PATH even with -E.
    return ("sudo", "-E", "env", f"PATH={_path()}", *_UNSHARE)


def through_sudo() -> bool:
    """Whether the sandbox is entered as another user, root. Raises ``SandboxError``."""
    return way_in()[0] == "sudo"


def command(program: list[str], *, tied: bool) -> list[str]:
    """Command line that runs ``program`` as the first process of a new sandbox.

    tied: the sandbox dies with whoever starts the command, even by SIGKILL. (Where sudo is in
    between, the kernel's parent-death signal does not reach; the program has to watch for the end
    of its standard input in any case.)
    """
    tie = ["setpriv", "--pdeathsig", "KILL"] if tied else []
    return [*tie, *way_in(), *program]


def settle() -> None:
    """In the first process of a sandbox: mounts this network namespace's sysfs, drops IPv6.

    Raises ``SandboxError`` if this is no sandbox of its own.
    """
    if os.getpid() != 1:
        raise SandboxError("not the first process of a sandbox: start it through `rackhub`")
    os.environ["PATH"] = _path()
    result = subprocess.run(
        ["mount", "-t", "sysfs", "sysfs", "/sys"], capture_output=True, text=True
    )
    if result.returncode != 0:
        raise SandboxError(f"cannot mount sysfs in the sandbox: {result.stderr.strip()}")
    result = subprocess.run(
        ["sh", "-ec", f"{NO_IPV6}; ip link set lo up"], capture_output=True, text=True
    )
    if result.returncode != 0:
        raise SandboxError(f"cannot set up the sandbox's network: {result.stderr.strip()}")


# Nothing may send on its own on a link whose bytes are counted.
NO_IPV6 = (
    "for scope in all default; do file=/proc/sys/net/ipv6/conf/$scope/disable_ipv6;"
    " if [ -e $file ]; then echo 1 > $file; fi; done"
)
