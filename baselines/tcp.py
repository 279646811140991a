# SPDX-License-Identifier: Apache-2.0
"""TCP settings of baselines in emulation, independent of the machine's defaults.

Reno (RFC 5681), which every Linux has and allows without privileges, and which CUBIC equals at
round trips as short as here (RFC 9438, 4.3); and explicit congestion notification (RFC 3168), as
switches mark packets at the topology's `ecn_bytes` for in-network aggregation, too. Both are
settings of a network namespace that apply to later connections.
"""

from __future__ import annotations

from pathlib import Path

CONGESTION_CONTROL = "reno"
_SETTINGS = Path("/proc/sys/net/ipv4")


def set_up(settings: Path = _SETTINGS) -> None:
    """Applies the settings to this process's network namespace. Raises OSError with a remedy."""
    for name, value in (("tcp_congestion_control", CONGESTION_CONTROL), ("tcp_ecn", "1")):
        path = settings / name
        if path.read_text().split() == [value]:
            continue
        try:
            path.write_text(value)
        except OSError as error:
            raise OSError(
                error.errno,
                f"{path} cannot be set to {value} ({error.strerror}), so results would depend on"
                f" this machine's TCP; try `sysctl net.ipv4.{name}={value}` as root, outside",
            ) from error
