# SPDX-License-Identifier: Apache-2.0
"""Which TCP members speak in emulation: the same on every machine, whatever it has by default.

Reno (RFC 5681), the one that every Linux has and allows to everybody, and to which CUBIC comes down
where round trips are as short as here (RFC 9438, 4.3); and explicit congestion notification
(RFC 3168), as switches mark packets at the topology's `ecn_bytes`, for sums in the network, too.
Both are settings of a network namespace, and hold for connections that begin later.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["CONGESTION_CONTROL", "set_up"]

CONGESTION_CONTROL = "reno"
_SETTINGS = Path("/proc/sys/net/ipv4")


def set_up(settings: Path = _SETTINGS) -> None:
    """For this process's network namespace. Raises OSError with what to do."""
    for name, value in (("tcp_congestion_control", CONGESTION_CONTROL), ("tcp_ecn", "1")):
        path = settings / name
        if path.read_text().split() == [value]:
            continue
        try:
            path.write_text(value)
        except OSError as error:
            raise OSError(
                error.errno,
                f"{path} cannot be set to {value} ({error.strerror}), so that it would depend on"
                f" this machine what TCP is compared with; try `sysctl net.ipv4.{name}={value}` as"
                " root, outside",
            ) from error
