# SPDX-License-Identifier: Apache-2.0
"""The embedded target and BMv2 make the same of the same packets, byte for byte.

BMv2 reads and writes capture files here (--use-files): no interface, and no root, is needed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switch.pipeline import Pipeline
from switch.program import Program
from tests.p4 import HERE
from tests.packet import test_corpus_arithmetic as arithmetic
from tests.packet import test_corpus_parsing as parsing
from tests.packet import test_corpus_replication as replication
from tests.packet import test_corpus_state as state
from tests.packet.thrift import free_port

BMV2 = shutil.which("simple_switch_grpc")
pytestmark = [
    pytest.mark.packet,
    pytest.mark.bmv2,
    pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is not on PATH"),
]

PORTS = range(4)
PCAP_HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)

Output = dict[int, list[bytes]]


def read_capture(path: Path) -> list[bytes]:
    """The packets of a capture file that may still be growing, without empty ones."""
    data = path.read_bytes() if path.exists() else b""
    frames, at = [], len(PCAP_HEADER)
    while at + 16 <= len(data):
        length = struct.unpack_from("<I", data, at + 8)[0]
        if at + 16 + length > len(data):
            break
        if length:
            frames.append(data[at + 16 : at + 16 + length])
        at += 16 + length
    return frames


def bmv2(
    program: Path, frames: list[bytes], expected: list[int], directory: Path, window: int
) -> Output:
    """What BMv2 makes of frames on port 0, of which the first i + 1 make expected[i] packets.

    Frames go through a pipe, never more than `window` ahead of what came out: BMv2 drops what finds
    its queue of 64 packets full.
    """
    interfaces = []
    for port in PORTS:
        if port:
            (directory / f"p{port}_in.pcap").write_bytes(PCAP_HEADER)
        interfaces += ["-i", f"{port}@p{port}"]
    pipe = directory / "p0_in.pcap"
    os.mkfifo(pipe)
    log = (directory / "log").open("wb")
    process = subprocess.Popen(
        [str(BMV2), "--use-files", "0", "-L", "off", "--thrift-port", str(free_port()),
         *interfaces, str(program), "--", "--grpc-server-addr", f"unix:{directory}/grpc"],
        cwd=directory, stdout=log, stderr=log,
    )  # fmt: skip
    writer = os.open(pipe, os.O_RDWR)  # does not wait for the reader
    outputs: Output = {}

    def wait_for(count: int) -> None:
        deadline = time.monotonic() + 20
        while sum(map(len, outputs.values())) < count and time.monotonic() < deadline:
            assert process.poll() is None, (directory / "log").read_text()[:2000]
            time.sleep(0.02)  # a file cannot be waited for
            for port in PORTS:
                outputs[port] = read_capture(directory / f"p{port}_out.pcap")

    try:
        os.write(writer, PCAP_HEADER)
        for i, frame in enumerate(frames):
            if i >= window:
                wait_for(expected[i - window])
            os.write(writer, struct.pack("<IIII", 0, i, len(frame), len(frame)) + frame)
        # One more, which makes nothing come out sooner or later: BMv2 reads one ahead.
        os.write(writer, struct.pack("<IIII", 0, len(frames), 1, 1) + frames[0][:1])
        wait_for(expected[-1])
        return outputs
    finally:
        process.terminate()
        process.wait(10)
        os.close(writer)
        log.close()


def embedded(program: Path, frames: list[bytes]) -> tuple[Output, list[int]]:
    """What comes out per port, and how many packets after each frame."""
    outputs: Output = defaultdict(list)
    counts, count = [], 0
    with Pipeline(Program.load(program), pool=64) as pipeline:
        for frame in frames:
            for port, out in pipeline.inject(0, frame):
                outputs[port].append(out)
                count += 1
            counts.append(count)
    return outputs, counts


def compare(program: Path, frames: list[bytes], directory: Path, window: int = 20) -> None:
    own, counts = embedded(program, frames)
    assert set(own) <= set(PORTS)
    theirs = bmv2(program, frames, counts, directory, window)
    for port in PORTS:
        for mine, reference in zip(own.get(port, []), theirs[port], strict=False):
            assert mine.hex() == reference.hex()
        assert len(own.get(port, [])) <= len(theirs[port]) <= len(own.get(port, [])) + 1


def expression_frames(rng: random.Random, count: int) -> Iterator[bytes]:
    for _ in range(count):
        values = {}
        for name, width, signed in arithmetic.INPUTS:
            value = rng.choice([rng.getrandbits(width), rng.choice(arithmetic.CORNERS)])
            values[name] = arithmetic.wrap(value, width, signed)
        yield arithmetic.pack(arithmetic.INPUTS, values) + bytes(1200)


def has_division(tree: Any) -> bool:
    """BMv2 ends at a division by zero."""
    return isinstance(tree, dict) and (
        tree.get("op") in ("/", "%") or any(map(has_division, tree.values()))
    )


@pytest.mark.parametrize("seed", [7])
def test_random_expressions(seed: int, tmp_path: Path) -> None:
    trees = arithmetic.Trees(seed)
    results, assignments = arithmetic.choose(trees)
    kept = [(name, tree) for name, tree in assignments if not has_division(tree)]
    document = arithmetic.document(results, kept)
    path = tmp_path / "program.json"
    path.write_text(json.dumps(document))
    compare(path, list(expression_frames(trees.random, 100)), tmp_path)


def test_parsing(tmp_path: Path) -> None:
    frames = [one for one in parsing.random_frames(random.Random(9), 400) if one]
    compare(HERE / "parsing.json", frames, tmp_path)


def test_packets_that_go_round(tmp_path: Path) -> None:
    frames = [
        replication.frame(op, argument, bytes(range(20)))
        for op in (
            replication.FORWARD, replication.RESUBMIT, replication.RECIRCULATE,
            replication.TRUNCATE, replication.DROP, replication.CLONE, replication.MULTICAST,
        )
        for argument in (0, 1, 3, 25, 200)
    ]  # fmt: skip
    # BMv2 reads one ahead, so this is one at a time: what goes round would come out behind
    # later frames.
    compare(HERE / "replication.json", frames, tmp_path, window=2)


def test_state_and_hashes(tmp_path: Path) -> None:
    # Not READ_SIGNED: BMv2 reads negative values from registers as positive ones, and v1model
    # promises nothing about registers of signed integers.
    rng = random.Random(4)
    frames = [
        bytes(
            [
                rng.choice([state.WRITE, state.READ_WIDE, state.READ_NARROW, state.LOG]),
                rng.randrange(8),
            ]
        )
        + rng.choice([rng.randbytes(9), b"\xff" * 9, bytes(9)])
        for _ in range(300)
    ]
    compare(HERE / "state.json", frames, tmp_path)


def test_wide_sums(tmp_path: Path) -> None:
    rng = random.Random(5)
    frames = [
        bytes(12) + b"\x88\xb5" + bytes([rng.choice([0, 1, 1]), 0, 0, rng.randrange(4)])
        + rng.randbytes(1024)
        for _ in range(100)
    ]  # fmt: skip
    compare(HERE / "adder.json", frames, tmp_path)
