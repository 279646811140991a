# SPDX-License-Identifier: Apache-2.0
"""Tests packaging and machine setup files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from setuptools import PackageFinder

from tests.conftest import ROOT

if sys.version_info < (3, 11):
    import tomli as tomllib
else:
    import tomllib


@pytest.mark.skipif(shutil.which("vagrant") is None, reason="vagrant is not installed")
@pytest.mark.parametrize("provider", [[], ["--ignore-provider"]])
def test_vagrantfile_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: list[str]
) -> None:
    shutil.copy(ROOT / "Vagrantfile", tmp_path)
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    monkeypatch.setenv("VAGRANT_HOME", str(tmp_path / "home"))
    result = subprocess.run(
        ["vagrant", "validate", *provider], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_package_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    find = settings["tool"]["setuptools"]["packages"]["find"]
    found = set(PackageFinder.find(ROOT, exclude=find["exclude"]))
    tops = {path.parent for path in ROOT.glob("*/__init__.py")} - {ROOT / "tests"}
    there = [path.parent.relative_to(ROOT) for top in tops for path in top.rglob("*.py")]
    assert {".".join(folder.parts) for folder in there} == found


def test_every_source_names_its_licence_and_only_scapys_users_are_gpl() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        if parts[0].startswith(".") or "_pb2" in path.name:
            continue
        text = path.read_text()
        licence = re.search(r"^# SPDX-License-Identifier: (\S+)$", text, re.MULTILINE)
        assert licence is not None, f"{path} names no licence"
        uses_scapy = re.search(
            r"^\s*(from|import) (scapy|protocol\.scapy_layer|protocol import scapy_layer)\b",
            text,
            re.MULTILINE,
        )
        # A test that works with the GPL's may be the GPL's, too; the product may not.
        allowed = {"GPL-2.0-only"} if uses_scapy else {"Apache-2.0"}
        if parts[0] == "tests":
            allowed.add("GPL-2.0-only")
        assert licence[1] in allowed, f"{path} is {licence[1]}, should be {allowed}"
