# SPDX-License-Identifier: Apache-2.0
"""Tests what is said where a user may not make namespaces."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from emulation.network import namespaces
from emulation.network.namespaces import SandboxError, way_in

REFUSAL = "unshare: unshare failed: No space left on device"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provides the folder of a user's kernel settings, which forbid user namespaces; no sudo."""
    monkeypatch.setattr(namespaces, "missing_tools", dict)
    monkeypatch.setattr(namespaces, "_refusal", lambda prefix: REFUSAL)
    monkeypatch.setattr(namespaces, "_SETTINGS", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    way_in.cache_clear()
    return tmp_path


def given(settings: Path, **values: int) -> None:
    for name, value in values.items():
        file = settings / name.replace("__", "/")
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{value}\n")


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        ({"user__max_user_namespaces": 0}, "(sysctl user.max_user_namespaces=10000)"),
        (
            {"user__max_user_namespaces": 96364, "kernel__unprivileged_userns_clone": 0},
            "(sysctl kernel.unprivileged_userns_clone=1)",
        ),
        (
            {
                "user__max_user_namespaces": 0,
                "kernel__unprivileged_userns_clone": 1,
                "kernel__apparmor_restrict_unprivileged_userns": 1,
            },
            "(sysctl user.max_user_namespaces=10000"
            " kernel.apparmor_restrict_unprivileged_userns=0)",
        ),
        ({"user__max_user_namespaces": 96364}, "allow user namespaces, or use"),
    ],
)
def test_refusal_names_the_settings_that_forbid(
    settings: Path, values: dict[str, int], advice: str
) -> None:
    given(settings, **values)
    with pytest.raises(SandboxError) as refused:
        way_in()
    text = str(refused.value)
    assert REFUSAL in text
    assert advice in text
    assert text.count("sysctl") == advice.count("sysctl")
    assert "`rackhub run --clock virtual`" in text


def test_refusals_by_sudo_and_of_root_say_what_works_without(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(settings, user__max_user_namespaces=0)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(namespaces.subprocess, "run", lambda command: CompletedProcess(command, 1))
    with pytest.raises(SandboxError, match=r"sudo refused: .* user\.max_.*--clock virtual"):
        way_in()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SandboxError, match=r"--privileged.*--clock virtual"):
        way_in()
