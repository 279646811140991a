# SPDX-License-Identifier: Apache-2.0
"""Tests the stated memory of a job against the memory of a process that runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specs import jobfile
from tests.conftest import ROOT
from topologies.model.spec import read
from workloads.memory import memory_of

RUN = """
import re, sys
from click.testing import CliRunner
from cli.main import main
result = CliRunner().invoke(main, ["run", sys.argv[1], "--clock", "virtual", "--job", sys.argv[2]])
assert result.exit_code == 0, result.output
# Not ru_maxrss: that may be of the process which started this one.
print(1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]))
"""
JOB = "name: x\nworkload: layers\nlayers: [{}]\niterations: 2\nwindow: 256\n"


def peak(folder: Path, layers: str) -> tuple[int, int]:
    """The job's stated memory, and the peak of a process that runs it, in bytes."""
    job = folder / "job.yaml"
    job.write_text(JOB.format(layers))
    topology = ROOT / "topologies" / "one-rack.yaml"
    environment = os.environ | {"RACKHUB_RUNS": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RUN, str(topology), str(job)]
    ended = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    workers = len(jobfile.load(job).place(read(topology).topology).workers)
    return memory_of(jobfile.load(job).spec, workers), int(ended.stdout)


def test_a_run_takes_the_memory_that_is_stated(tmp_path: Path) -> None:
    small, least = peak(tmp_path, "4 kB")
    large, most = peak(tmp_path, "8 MB, 2 MB, 2 MB, 2 MB, 2 MB")
    assert most - least == pytest.approx(large - small, rel=0.2)
