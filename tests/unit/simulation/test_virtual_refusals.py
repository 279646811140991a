# SPDX-License-Identifier: Apache-2.0
"""Tests that configurations unsupported in virtual time are rejected with file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main

TOPOLOGY = """name: t
defaults: {rate: 1 Gbit/s, mtu: 1500}
racks: [{workers: 2, servers: 1}]
costs: {framing: false}
"""
JOB = """name: j
iterations: 1
batch: 8
hidden: [8]
compute: 1 ms
"""
LAYERS = """layer_times:
  - {name: layer1, forward_seconds: 1, backward_seconds: 1}
  - {name: conv, forward_seconds: 1, backward_seconds: 1}
"""
SLOW = "{rate: 1 kbit/s, queue_bytes: 1 GB}"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"rate: 1 Gbit/s": "rate: 0"},
            ["t.yaml:2: defaults.rate: 0 is out of range; allowed: 1 kbit/s to 1 Tbit/s"],
        ),
        (
            {"mtu: 1500": "mtu: 9000, queue_bytes: 8 KiB"},
            [
                "t.yaml:2: defaults.queue_bytes: a queue of 8192 B holds no packet of MTU 9000 (w0"
                " to tor0); allowed: at least 9014 B"
            ],
        ),
        (
            {"mtu: 1500": "mtu: 1000"},
            [
                "t.yaml:2: defaults.mtu: w0 to tor0 has MTU 1000, and a chunk of 256 lanes makes"
                " packets of 1084 B; allowed: at least that"
            ],
        ),
        (
            {"{rate: 1 Gbit/s, mtu: 1500}": SLOW},
            [
                "t.yaml:2: defaults.queue_bytes: w0 to tor0: a queue of 1000000000 B at 1000 bit/s"
                " takes more than 1000000 s to empty"
            ],
        ),
        (
            {"workers: 2": "workers: 33"},
            ["t.yaml:3: racks[0].workers: tor0 would have 33 children, 32 are possible"],
        ),
        (
            {"framing: false": "switch_latency: -1 us, framing: 24"},
            [
                "t.yaml:4: costs.framing: should be true or false, not 24",
                "t.yaml:4: costs.switch_latency: '-1 us' is negative",
            ],
        ),
        (
            {"mtu: 1500": "delay: -1 ms"},
            ["t.yaml:2: defaults.delay: '-1 ms' is negative"],
        ),
        ({"compute: 1 ms": "compute: -1 ms"}, ["j.yaml:5: compute: '-1 ms' is negative"]),
        (
            {"compute: 1 ms": "compute: {layers: layers.yaml}"},
            [
                "layers.yaml:1: layer_times: nothing of layer2, which the model of job j has",
                "layers.yaml:3: layer_times[1].name: the model of job j has no layer 'conv'; it has"
                " layer1, layer2",
            ],
        ),
        (
            {
                "batch: 8\nhidden: [8]": "workload: layers\nlayers: [4 kB, 4 kB]",
                "compute: 1 ms": "compute: {layers: layers.yaml}",
            },
            [
                "layers.yaml:1: layer_times: nothing of layer2, which the model of job j has",
                "layers.yaml:3: layer_times[1].name: the model of job j has no layer 'conv'; it has"
                " layer1, layer2",
            ],
        ),
    ],
)
def test_invalid_configurations_are_rejected_with_location(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], says: list[str]
) -> None:
    monkeypatch.setenv("RACKHUB_RUNS", str(tmp_path / "runs"))
    texts = {"t.yaml": TOPOLOGY, "j.yaml": JOB, "layers.yaml": LAYERS}
    for name, text in texts.items():
        for old, new in changes.items():
            text = text.replace(old, new)
        (tmp_path / name).write_text(text)
    files = (str(tmp_path / "t.yaml"), "--job", str(tmp_path / "j.yaml"))
    trace = tmp_path / "trace.json"
    ran = CliRunner().invoke(main, ["run", *files, "--clock", "virtual", "--trace", str(trace)])
    checked = CliRunner().invoke(main, ["validate", *files, "--clock", "virtual"])
    assert (checked.exit_code, checked.stderr) == (1, ran.stderr)
    assert ran.exit_code == 1
    errors = [line for line in ran.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == len(says)
    for line, text in zip(errors, says, strict=True):
        assert line.startswith(f"error: {tmp_path}/{text}")
    assert not (tmp_path / "runs").exists()
    assert not trace.exists()
