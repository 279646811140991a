# SPDX-License-Identifier: Apache-2.0
"""Small P4 programs with what p4c makes of them, for tests of the target."""

from pathlib import Path

from switch.loader import load_program
from switch.pipeline import Pipeline

HERE = Path(__file__).parent


def corpus(name: str, pool: int = 64) -> Pipeline:
    """A running program of this directory."""
    return Pipeline(load_program(HERE / f"{name}.json"), pool)
