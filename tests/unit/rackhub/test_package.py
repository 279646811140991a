# SPDX-License-Identifier: Apache-2.0
"""Tests what ``import rackhub`` has, and that it loads nothing before it is used."""

from __future__ import annotations

import ast
import pydoc
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import rackhub
from hosts import errors
from protocol.errors import Error

SOURCE = Path(rackhub.__file__)


def loaded(code: str) -> set[str]:
    """Packages that a new interpreter has loaded after this code."""
    code += "; import sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_type_checkers_see_the_names_that_are_there() -> None:
    """The imports for type checkers and those at run time are of the same names."""
    block, _ = [n for n in ast.parse(SOURCE.read_text()).body if isinstance(n, ast.If)]
    seen = {
        alias.asname: (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(seen) == rackhub.__all__
    for name, (module, attribute) in seen.items():
        assert module is not None
        assert getattr(rackhub, name) is getattr(import_module(module), attribute)


def test_all_names_are_listed_and_documented() -> None:
    assert set(rackhub.__all__) <= set(dir(rackhub))
    page = pydoc.plain(pydoc.render_doc(rackhub))
    assert "class Topology" in page
    assert "run(topology: " in page
    for name in rackhub.__all__:
        assert getattr(rackhub, name).__doc__, name
    with pytest.raises(AttributeError, match="'rackhub' has no attribute 'Cleint'"):
        rackhub.Cleint  # noqa: B018


def test_every_error_of_members_is_there_and_has_the_base() -> None:
    named = {name for name in vars(errors) if name.endswith("Error")}
    assert named <= set(rackhub.__all__)
    for name in rackhub.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(rackhub, name), Error), name


def test_a_worker_loads_nothing_of_experiments() -> None:
    assert not loaded("import rackhub") & {"numpy", "hosts", "topologies", "typing_extensions"}
    worker = loaded("from rackhub import Client, LeftBehindError, OptimizerPlan")
    assert "hosts" in worker
    heavy = {"pydantic", "yaml", "rich", "matplotlib", "pandas", "emulation", "simulation", "specs"}
    assert not worker & heavy
