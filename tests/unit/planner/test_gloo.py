# SPDX-License-Identifier: Apache-2.0
"""Tests PyTorch's gloo as a contender: two processes on this machine. Needs PyTorch."""

from __future__ import annotations

import json
import socket
import subprocess

import pytest

from emulation.nodes.processes import environment, python

WAIT_SECONDS = 120.0


def test_gloo_sums():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    result = {
        "name": "gloo", "workers": 2, "sizes": [1000], "interface": "lo",
        "set_up_tcp": False,
        "addresses": [["127.0.0.1", port], ["127.0.0.1", port + 1]],
    }  # fmt: skip
    steps = [{"do": "prepare"}, {"do": "open", "setup": None}, {"do": "iterate", "number": 1}]
    members = [
        subprocess.Popen(
            python("baselines.process"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
        )
        for _ in range(2)
    ]  # fmt: skip
    for number, one in enumerate(members):
        assert one.stdin is not None
        lines = [{**result, "member": number}, *steps, {"do": "close"}]
        one.stdin.write("".join(json.dumps(line) + "\n" for line in lines))
        one.stdin.close()
        one.stdin = None
    for one in members:
        answers = [
            json.loads(line)
            for line in one.communicate(timeout=WAIT_SECONDS)[0].split("\n")
            if line
        ]
        assert [set(answer) for answer in answers] == 5 * [{"answer"}]
        assert answers[3]["answer"]["wrong"] == 0
