# SPDX-License-Identifier: Apache-2.0
"""Creates the sandbox of an emulated testbed: new network, mount and PID namespaces.

``command(...)`` returns the command line that starts a program as the first process of a new
sandbox. When that process ends, the kernel kills every other process in the sandbox and removes
its interfaces (namespaces(7), pid_namespaces(7)). For an ordinary user the sandbox is entered
through a user namespace where the system allows one, else through sudo.

A sandbox's first process calls ``settle()`` before anything reads ``/sys``.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from protocol.errors import Error

_UNSHARE = ["unshare", "-n", "-m", "-p", "-f", "--mount-proc", "--kill-child"]
_UNSHARE_AS_USER = ["unshare", "-U", "-r", *_UNSHARE[1:]]
# What Mininet needs of a namespace. AppArmor may allow user namespaces but deny these.
_PROBE = "mount -t sysfs sysfs /sys && ip link add probe0 type veth peer name probe1"
# Settings that forbid user namespaces: the forbidding value, and one that allows them.
_SYSCTLS = {
    "user.max_user_namespaces": (0, 10_000),
    "kernel.unprivileged_userns_clone": (0, 1),  # Debian
    "kernel.apparmor_restrict_unprivileged_userns": (1, 0),  # Ubuntu 24.04 and later
}
_SETTINGS = Path("/proc/sys")
_WITHOUT = "or use `rackhub run --clock virtual`, which needs none"
_TOOLS = {
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "ip": "iproute2",
    "tc": "iproute2",
    "ethtool": "ethtool",
    "mnexec": "mininet",
}


class SandboxError(Error):
    """This machine cannot create a sandbox; the text says why and what to do."""


def _path() -> str:
    """Returns PATH with the folders of administration tools, which users' PATHs often lack."""
    parts = os.environ.get("PATH", "/usr/bin:/bin").split(":")
    return ":".join(parts + [p for p in ("/usr/sbin", "/sbin") if p not in parts])


def missing_tools() -> dict[str, str]:
    """Returns commands that an emulated testbed needs and this machine lacks, with their Debian
    packages."""
    return {
        tool: package
        for tool, package in _TOOLS.items()
        if shutil.which(tool, path=_path()) is None
    }


def _how_to_allow() -> str:
    """Returns how to allow user namespaces here, and what works without them."""
    settings = []
    for name, (forbids, allows) in _SYSCTLS.items():
        file = _SETTINGS / name.replace(".", "/")
        if file.exists() and int(file.read_text()) == forbids:
            settings.append(f"{name}={allows}")
    command = f" (sysctl {' '.join(settings)})" if settings else ""
    return f"run as root, or allow user namespaces{command}, {_WITHOUT}"


def _refusal(prefix: list[str]) -> str | None:
    """Returns why a sandbox started with ``prefix`` is insufficient; None if it is sufficient."""
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
    """Returns the command prefix that enters a sandbox: as root, by a user namespace, or by sudo.

    Tries them, which takes some milliseconds. Raises ``SandboxError`` if none works.
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
            f" `--privileged` (or with --cap-add SYS_ADMIN --cap-add NET_ADMIN), {_WITHOUT}"
        )
    refusal = _refusal(_UNSHARE_AS_USER)
    if refusal is None:
        return tuple(_UNSHARE_AS_USER)
    if shutil.which("sudo") is None:
        raise SandboxError(
            f"user namespaces are not available ({refusal}) and sudo is not installed:"
            f" {_how_to_allow()}"
        )
    print(f"user namespaces are not available ({refusal}): using sudo", file=sys.stderr, flush=True)
    if subprocess.run(["sudo", "-v"]).returncode != 0:
        raise SandboxError(f"sudo refused: {_how_to_allow()}")
    # sudo resets PATH even with -E.
    return ("sudo", "-E", "env", f"PATH={_path()}", *_UNSHARE)


def through_sudo() -> bool:
    """Returns whether the sandbox is entered as root through sudo. Raises ``SandboxError``."""
    return way_in()[0] == "sudo"


def command(program: list[str], *, tied: bool) -> list[str]:
    """Returns the command line that runs ``program`` as the first process of a new sandbox.

    tied: the sandbox ends with the process that starts the command, even on SIGKILL. The kernel's
    parent-death signal does not pass sudo, so the program also has to watch for the end of its
    standard input.
    """
    tie = ["setpriv", "--pdeathsig", "KILL"] if tied else []
    return [*tie, *way_in(), *program]


def settle() -> None:
    """Mounts the network namespace's sysfs and disables IPv6; for a sandbox's first process.

    Raises ``SandboxError`` in any other process.
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


# The kernel must not send by itself on links whose bytes are counted.
NO_IPV6 = (
    "for scope in all default; do file=/proc/sys/net/ipv6/conf/$scope/disable_ipv6;"
    " if [ -e $file ]; then echo 1 > $file; fi; done"
)
