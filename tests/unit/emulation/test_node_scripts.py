# SPDX-License-Identifier: Apache-2.0
"""Tests shell scripts that configure nodes."""

from __future__ import annotations

import os

import pytest

from emulation.network.emulated import NetworkError, NodeProcess

NODE = NodeProcess("middle", os.getpid(), in_namespace=False)


def test_a_script_may_be_longer_than_an_argument() -> None:
    """Linux allows 128 KiB for one (MAX_ARG_STRLEN, execve(2))."""
    lines = [f"n={number}" for number in range(20_000)]
    script = "\n".join([*lines, "echo $n"])
    assert len(script) > 128 * 1024
    assert NODE.run(script) == "19999\n"


def test_a_failing_line_is_shown_and_the_last_one_run() -> None:
    with pytest.raises(NetworkError) as raised:
        NODE.run("echo before\nls /no/such/folder\necho after\n")
    said = str(raised.value)
    assert said.startswith("middle: cannot configure its network:\n")
    assert "+ ls /no/such/folder" in said
    assert "echo after" not in said
