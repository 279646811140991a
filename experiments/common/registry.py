# SPDX-License-Identifier: Apache-2.0
"""Finds experiments by their files.

Every file of ``experiments/`` but this package, and every folder with an ``experiment.py``, is one:
its ``EXPERIMENT`` is declared (``experiments.common.declaration``), or its ``main`` runs by itself
(``experiments.common.script``).
"""

from __future__ import annotations

import importlib
import pkgutil

import experiments
from experiments.common.declaration import Experiment
from experiments.common.script import Script

__all__ = ["experiment_named", "names"]


def names() -> list[str]:
    """Returns the names of all experiments."""
    return sorted(
        one.name for one in pkgutil.iter_modules(experiments.__path__) if one.name != "common"
    )


def experiment_named(name: str) -> Experiment | Script:
    """Imports an experiment."""
    module = importlib.import_module(f"experiments.{name}")
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"experiments.{name}.experiment")
    found: Experiment | Script = module.EXPERIMENT if hasattr(module, "EXPERIMENT") else module.main
    return found
