# SPDX-License-Identifier: Apache-2.0
"""Runs the page on experiments in Python, the scripts that it names, and the notebook."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "howto" / "experiment-in-python.md").read_text()
NOTEBOOK = ROOT / "examples" / "topologies.ipynb"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
# The testbed of the other script is run by tests/network/test_python_testbeds.py.
SCRIPT = "examples/compare_trees.py"


def run(words: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_names_what_is_run_here() -> None:
    assert f"    python {SCRIPT} " in PAGE
    assert "    jupyter lab examples/topologies.ipynb" in PAGE
    assert len(BLOCKS) == 3
    for script in re.findall(r"python (examples/\w+\.py)", PAGE):
        assert len((ROOT / script).read_text().splitlines()) < 30


@pytest.mark.usefixtures("runs")
def test_the_pages_blocks_run_one_after_the_other(tmp_path: Path) -> None:
    run([sys.executable, "-c", "\n".join(BLOCKS)], tmp_path)
    assert (tmp_path / "rates.svg").read_text().startswith("<?xml")


@pytest.mark.usefixtures("runs")
def test_trees_are_compared() -> None:
    lines = run([sys.executable, SCRIPT], ROOT).splitlines()
    assert lines[0] == "<Topology leaf-spine: 16 workers, 4 servers, 6 switches>"
    times = {line.split()[0]: float(line.split()[1]) for line in lines[1:]}
    assert list(times) == ["two-level", "tor", "none"]
    assert times["none"] > 2 * times["two-level"]


@pytest.mark.usefixtures("runs")
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("pandas")
    book = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells)
    client = nbclient.NotebookClient(
        book, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
    )
    client.execute()
    shown: list[Any] = [
        cell.outputs[-1].data for cell in book.cells if cell.cell_type == "code" and cell.outputs
    ]
    assert len(shown) == len([cell for cell in book.cells if cell.cell_type == "code"])
    kinds = [sorted(json.loads(json.dumps(data)))[0] for data in shown]
    assert kinds.count("image/svg+xml") == 3  # the drawing and two plots
    assert "matches reference" in shown[1]["text/html"]
    assert float(shown[3]["text/plain"]) > 2  # servers alone are slower
