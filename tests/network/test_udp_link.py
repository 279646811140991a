# SPDX-License-Identifier: Apache-2.0
"""Tests the UDP driver on a link between two network namespaces: queues, offloads and MTU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hosts.net.pacer import urgent_bytes

RIG = Path(__file__).with_name("udp_rig.py")


@cache
def own_namespace() -> list[str]:
    """The command that runs another in a network namespace of its own; [] if that is refused."""
    command = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-U", "-r", "-n"]
    works = subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    return command if works else []


pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not own_namespace(), reason="network namespaces are not allowed here"),
    pytest.mark.skipif(
        any(shutil.which(tool) is None for tool in ("tc", "ethtool", "nsenter")),
        reason="needs tc, ethtool and nsenter",
    ),
]


def over_link(**options: Any) -> dict[str, Any]:
    """What the rig reports."""
    command = [*own_namespace(), sys.executable, str(RIG), json.dumps(options)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert result.returncode == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


@pytest.mark.parametrize("plain", [False, True], ids=["probed", "plain"])
def test_a_full_queue_blocks_the_sender_and_loses_nothing(plain: bool) -> None:
    queue = 64 * 1024
    report = over_link(rate=20_000_000, queue=queue, queue_bytes=queue, count=300, plain=plain)
    assert report["received"] == list(range(300))
    assert report["dropped"] == 0
    assert report["counters"]["send_blocked"] > 0


@pytest.mark.parametrize("plain", [False, True], ids=["probed", "plain"])
def test_urgent_packets_overtake_those_that_the_socket_has_not_taken(plain: bool) -> None:
    rate, queue = 20_000_000, 256 * 1024
    report = over_link(rate=rate, queue=queue, queue_bytes=queue, count=300, urgent=20, plain=plain)
    taken = report["sent_before"]
    lazy, urgent = list(range(280)), list(range(280, 300))
    assert report["received"] == lazy[:taken] + urgent + lazy[taken:]
    assert report["dropped"] == 0
    # The socket takes little, though the queue behind it has room for nearly all.
    assert taken * 1066 < urgent_bytes(rate, 1066) + 0.25 * queue


def test_urgent_packets_overtake_in_the_middle_of_a_link() -> None:
    """Where BMv2's ports are shaped. 40 of them need 170 ms there."""
    report = over_link(rate=2_000_000, queue=256 * 1024, count=50, urgent=10, classes=True)
    lazy, urgent = list(range(40)), list(range(40, 50))
    ahead = report["received"].index(40)
    assert report["received"] == lazy[:ahead] + urgent + lazy[ahead:]
    assert ahead < 20


def test_a_worker_has_no_port_of_servers() -> None:
    """The kernel is left only these, and one more."""
    script = (
        "import pathlib; from hosts.net.udp import worker_endpoint;"
        "pathlib.Path('/proc/sys/net/ipv4/ip_local_port_range').write_text('47104 47120');"
        "print([worker_endpoint('127.0.0.1').port for _ in range(8)])"
    )
    command = [*own_namespace(), "sh", "-c", 'ip link set lo up; exec "$@"', "sh", sys.executable]
    result = subprocess.run([*command, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == f"{[47120] * 8}\n"


def test_unbounded_sender_overflows_queue() -> None:
    report = over_link(rate=20_000_000, queue=64 * 1024, count=300)
    assert len(report["received"]) < 300
    assert report["dropped"] > 0


def test_an_interface_without_checksum_offload_gets_everything() -> None:
    """Older kernels refuse trains there (EIO), newer ones cut and sum them in software."""
    report = over_link(checksums="off", count=200)
    assert report["received"] == list(range(200))
    assert report["counters"]["sent"] == 200


def test_packets_larger_than_the_mtu_are_refused_with_their_size() -> None:
    """They are never sent in fragments: no switch could aggregate those."""
    report = over_link(lanes=2048, count=20)
    assert "10.9.0.2:47110: packets of 8252 bytes do not fit the MTU" in report["error"]
    assert report["received"] == []


def test_jumbo_packets_pass_a_jumbo_link() -> None:
    report = over_link(lanes=2048, count=50, mtu=9000)
    assert report["received"] == list(range(50))
