# SPDX-License-Identifier: GPL-2.0-only
"""Tests the Wireshark dissector against the scapy layer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet
from scapy.utils import wrpcap

from protocol.header import Op, Phase
from protocol.payloads import chunk_hash
from protocol.scapy_layer import Aggregation

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "protocol" / "rackhub.lua"
NOBODY = 65534

FIELDS = [
    "version",
    "op",
    "flags",
    "job",
    "epoch",
    "stream",
    "sender",
    "seq",
    "chunk",
    "children",
    "workers",
    "exponent",
    "max_exponent",
    "lanes",
    "node",
    "checksum",
]


def tshark(pcap: Path, *arguments: str) -> str:
    """The output of tshark for a capture, as an ordinary user; complaints about the script fail.

    As root, Wireshark from 4.4 on loads no Lua scripts. The user, who may see neither this checkout
    nor the capture, gets copies.
    """
    with tempfile.TemporaryDirectory() as folder:
        as_user: list[str] = []
        if os.geteuid() == 0:  # with `user=` of Popen, calls crashed under load
            as_user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
            os.chown(folder, NOBODY, NOBODY)
        for file in (SCRIPT, pcap):
            Path(shutil.copy(file, folder)).chmod(0o644)
        command = ["tshark", "-X", f"lua_script:{SCRIPT.name}", "-r", pcap.name, *arguments]
        result = subprocess.run(
            [*as_user, *command],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": folder},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert "rackhub.lua" not in result.stderr, result.stderr
    return result.stdout


def capture(path: Path, *packets: Packet) -> Path:
    link = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    wrpcap(str(path), [link / IP(dst="10.0.0.9") / UDP(sport=40000) / packet for packet in packets])
    return path


def layers(pcap: Path) -> list[dict[str, Any]]:
    """The aggregation layer of each packet, by field name."""
    packets = json.loads(tshark(pcap, "-T", "json", "--no-duplicate-keys"))
    return [packet["_source"]["layers"]["rackhub"] for packet in packets]


def number(text: str) -> int:
    return int(text, 0)


def test_every_field_has_the_value_and_the_name_of_the_scapy_layer(tmp_path: Path) -> None:
    packet = Aggregation(
        op=Op.RESULT,
        flags="ECN+RETRANSMIT",
        job=0x1234,
        epoch=0xFEDC,
        stream=200,
        sender=31,
        seq=0xFFFFFFFE,
        chunk=0x01020304,
        children=0x80000001,
        workers=513,
        exponent=-126,
        max_exponent=-128,
        node=0xABCD,
        values=[0, 1, -1, 2**31 - 1, -(2**31)] + [7] * 251,
    )
    [layer] = layers(capture(tmp_path / "run.pcap", packet))
    written = Aggregation(bytes(packet))
    for name in FIELDS:
        assert number(layer[f"rackhub.{name}"]) == int(written.getfieldval(name)), name

    shown = tshark(tmp_path / "run.pcap", "-T", "fields", "-e", "rackhub.values")
    assert [number(lane) for lane in shown.strip().split(",")] == written.values


def test_direct_lanes_are_floats(tmp_path: Path) -> None:
    pcap = capture(tmp_path / "run.pcap", Aggregation(flags="DIRECT", floats=[0.5, -1e30, 0.0]))
    shown = tshark(pcap, "-T", "fields", "-e", "rackhub.floats")
    assert [float(lane) for lane in shown.strip().split(",")] == pytest.approx([0.5, -1e30, 0.0])


def test_operations_flags_and_phases_are_named(tmp_path: Path) -> None:
    pcap = capture(
        tmp_path / "run.pcap",
        Aggregation(op=Op.CONTRIBUTE, lanes=0, flags="OVERFLOW+NONFINITE"),
        Aggregation(op=Op.QUERY, lanes=0, flags="DIRECT"),
        Aggregation(op=Op.STATE, lanes=0, flags=Phase.PARTIAL << 4),
    )
    contribute, query, state = tshark(pcap).splitlines()
    assert "CONTRIBUTE" in contribute
    assert "[OVERFLOW] [NONFINITE]" in contribute
    assert "QUERY" in query
    assert "[DIRECT]" in query
    assert "STATE" in state
    assert "PARTIAL" in state
    assert len(tshark(pcap, "-Y", "rackhub.flags.overflow == 1").splitlines()) == 1
    assert len(tshark(pcap, "-Y", "rackhub.flags.phase == 1").splitlines()) == 1
    assert "Phase: PARTIAL (1)" in tshark(pcap, "-V")


def test_either_port_selects_dissector(tmp_path: Path) -> None:
    up = Ether() / IP() / UDP(sport=40000, dport=47110) / Aggregation(values=[1])
    down = Ether() / IP() / UDP(sport=47110, dport=40000) / Aggregation(op=2, values=[1])
    first = Ether() / IP() / UDP(sport=40000, dport=47104) / Aggregation(values=[1])
    last = Ether() / IP() / UDP(sport=47119, dport=40000) / Aggregation(op=2, values=[1])
    wrpcap(str(tmp_path / "run.pcap"), [up, down, first, last])
    assert len(tshark(tmp_path / "run.pcap", "-Y", "rackhub").splitlines()) == 4


def test_malformed_fields_are_marked(tmp_path: Path) -> None:
    good = bytes(Aggregation(values=[1, 2, 3]))
    payload = Ether() / IP(dst="10.0.0.9") / UDP(sport=40000, dport=47110)
    wrong = {
        "rackhub.short": good[:31],
        "rackhub.version.unknown": b"\x21" + good[1:],
        "rackhub.payload.mismatch": good[:-4],
    }
    for name, datagram in wrong.items():
        wrpcap(str(tmp_path / "run.pcap"), [payload / datagram, payload / good])
        assert len(tshark(tmp_path / "run.pcap", "-Y", name).splitlines()) == 1, name


JOB = """
name: short
workload: digits
iterations: 2
"""
WORKERS = 4


@pytest.mark.timeout(120)
def test_in_a_real_run_every_result_shows_a_sum_that_checks(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    topology = ROOT / "topologies" / "one-rack.yaml"
    command = [sys.executable, "-m", "cli.main", "run", str(topology), "--job", str(job)]
    subprocess.run(
        [*command, "--target", "embedded", "--pcap", "--name", f"dissected-{os.getpid()}"],
        env={**os.environ, "RACKHUB_RUNS": str(tmp_path / "runs")},
        cwd=ROOT,
        timeout=100,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    run = tmp_path / "runs" / "latest"
    summary = json.loads((run / "summary.json").read_text())
    towards_worker = run / "pcap" / "tor0-eth1_out.pcap"
    names = ["job", "stream", "seq", "chunk", "exponent", "workers", "checksum", "values"]
    fields = [word for name in names for word in ("-e", f"rackhub.{name}")]
    results = "rackhub.op == 2 && rackhub.lanes > 0 && rackhub.flags.direct == 0"
    shown = tshark(towards_worker, "-Y", results, "-T", "fields", *fields).splitlines()
    assert len(shown) >= summary["chunks"]["aggregated_in_network"] > 0
    for line in shown:
        *header, values = line.split("\t")
        job_number, stream, seq, chunk, exponent, workers, checksum = map(number, header)
        total = sum(map(number, values.split(",")))
        once = int(chunk_hash(job_number, stream, seq, chunk, exponent))
        assert workers == WORKERS
        assert (total + workers * once) % 2**32 == checksum

    wrong = "rackhub.short || rackhub.payload.mismatch || rackhub.version.unknown || _ws.malformed"
    for pcap in (run / "pcap").iterdir():
        assert tshark(pcap, "-Y", wrong) == "", pcap.name
