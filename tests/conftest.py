# SPDX-License-Identifier: Apache-2.0
"""Fixtures that several kinds of tests share, and what to skip on this machine."""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from testbed.network.namespaces import SandboxError, way_in

ROOT = Path(__file__).resolve().parent.parent
ORDER = ("unit", "packet", "network")
# Takes longest of all, and all processors.
LONGEST = ROOT / "tests" / "packet" / "test_protocol.py"
# All testbeds are begun before this share of the other files is.
BEFORE = 0.7
STUCK_SECONDS = 60


def pytest_configure() -> None:
    """Processes that tests start can be interrupted, also where a shell started the tests in the
    background and had them ignore it, which is inherited."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by their folder, quick ones first; skips what cannot run here, saying why.

    Where files are shared out over processes, whole testbeds, each of which takes all processors,
    are spread evenly among the others, which wait more often; the longest comes first, so that all
    end together.
    """
    items.sort(key=lambda item: ORDER.index(item.path.parent.name))
    if "PYTEST_XDIST_WORKER" in os.environ:
        files = {kind: dict.fromkeys(i.path for i in items if i.path.parent.name == kind)
                 for kind in ORDER}  # fmt: skip
        place = {
            file: share * number / len(group)
            for share, group in (
                (BEFORE, files["network"]),
                (1.0, [*files["packet"], *files["unit"]]),
            )
            for number, file in enumerate(group)
        }
        items.sort(key=lambda item: (item.path != LONGEST, place[item.path]))
    for item in items:
        kind = item.path.relative_to(ROOT / "tests").parts[0]
        item.add_marker(kind)
    if any(item.get_closest_marker("network") for item in items):
        try:
            way_in()
        except SandboxError as error:
            for item in items:
                if item.get_closest_marker("network"):
                    item.add_marker(pytest.mark.skip(reason=str(error)))
    if shutil.which("simple_switch_grpc") is None:
        for item in items:
            if item.get_closest_marker("bmv2"):
                item.add_marker(pytest.mark.skip(reason="simple_switch_grpc is not installed"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test whose time is over fails; one that does not end even then, as it waits for threads of
    its own that wait for ever, ends its process, which is a failure, too, and holds nothing up."""
    mark = item.get_closest_marker("timeout")
    limit = float(mark.args[0] if mark is not None else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(limit + STUCK_SECONDS, exit=True, file=sys.__stderr__)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own for run directories."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("RACKHUB_RUNS", str(folder))
    return folder
