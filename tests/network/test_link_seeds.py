# SPDX-License-Identifier: Apache-2.0
"""Tests that losses of a testbed depend on the topology's seed and not on its name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.network.testbeds import Rackhub
from topologies.model.addressing import Addressing
from topologies.model.spec import parse

RACK = """\
name: {name}
seed: {seed}
defaults: {{rate: 50 Mbit/s}}
racks: [{{workers: 2, servers: 1}}]
links: [{{from: w0, to: tor0, loss: 50 %}}]
"""
PORT, PACKETS, ENDS = 9999, 100, 60
# The last ones say that no more is to come; no receiver needs all of them.
SEND = f"""
import socket, sys
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range({PACKETS + ENDS}):
    out.sendto(str(number).encode(), (sys.argv[1], {PORT}))
"""
RECEIVE = f"""
import socket, sys
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.bind((sys.argv[1], {PORT}))
print("ready", flush=True)
numbers = [0]
while numbers[-1] < {PACKETS}:
    numbers.append(int(taken.recv(100)))
print(numbers[1:-1])
"""


def received(rackhub: Rackhub, name: str, seed: int, *options: str) -> list[int]:
    """Numbers of the packets of w0 that w1 got."""
    text = RACK.format(name=name, seed=seed)
    rackhub.topology.write_text(text)
    address = str(Addressing(parse(text)).address("w1"))
    up = rackhub.call("up", rackhub.topology, "--target", "embedded", *options)
    assert up.returncode == 0, up.stderr
    try:
        receiver = subprocess.Popen(
            rackhub.command("exec", "w1", sys.executable, "-c", RECEIVE, address),
            stdout=subprocess.PIPE,
            text=True,
            env=rackhub.environment,
        )
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        sent = rackhub.call("exec", "w0", sys.executable, "-c", SEND, address)
        assert sent.returncode == 0, sent.stderr
        said, _ = receiver.communicate(timeout=60)
    finally:
        assert rackhub.call("down").returncode == 0
    numbers: list[int] = json.loads(said)
    return numbers


def test_losses_depend_on_seed_not_name(tmp_path: Path) -> None:
    """tests/packet/controller/test_controller.py shows that another seed changes the draw."""
    rackhub = Rackhub(tmp_path)
    first = received(rackhub, "rack", 1)
    assert PACKETS / 4 < len(first) < 3 * PACKETS / 4
    assert received(rackhub, "renamed", 2, "--topology-seed", "1") == first
