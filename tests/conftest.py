# SPDX-License-Identifier: Apache-2.0
"""Shared fixtures, and skip rules for this machine."""

from __future__ import annotations

import faulthandler
import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from emulation.network.namespaces import SandboxError, way_in
from testbed.targets import bmv2

ROOT = Path(__file__).resolve().parent.parent
ORDER = ("unit", "packet", "network")
# The longest test files, each of a minute or more of CPU time; the first uses all cores.
LONGEST = [
    ROOT / "tests" / name
    for name in ("packet/jobs/test_protocol.py", "unit/worker/test_sanitized.py", "unit/test_p3.py")
]
# All testbed tests start before this share of the other files.
BEFORE = 0.5
STUCK_SECONDS = 60
NO_BMV2 = "BMv2 (simple_switch_grpc) is not installed"


# Variables of the caller that would change output or paths.
UNSET = (
    *("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM"),
    *("TTY_COMPATIBLE", "TTY_INTERACTIVE", "LANG", "LANGUAGE", "PAGER", "RACKHUB_RUNS"),
    *("SUDO_USER", "SUDO_UID", "SUDO_GID", "SUDO_COMMAND"),
)


def pytest_configure(config: pytest.Config) -> None:
    """Gives tests and their processes a fixed environment, independent of the caller's terminal,
    locale, home, umask, limit on open files and ignored signals."""
    gc.disable()  # test modules and items are many objects, and all of them stay
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~"), ".cache"))  # noqa: PTH111  # expanduser() raises where there is no home
    home = tempfile.mkdtemp(prefix="rackhub-home-")
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    # Compiled programs are kept between runs where they can be: files named by their content.
    if not _can_write(cache / "rackhub"):
        cache = Path(home, ".cache")
    os.environ |= {
        "HOME": home,
        "XDG_CACHE_HOME": str(cache),
        "TERM": "xterm-256color",
        "LC_ALL": "C.UTF-8",
        "no_proxy": "localhost,127.0.0.1,::1",
        "OPENBLAS_NUM_THREADS": "1",  # others would spin on the cores that tests share
    }
    for name in UNSET:
        os.environ.pop(name, None)
    os.umask(0o022)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # A shell that starts a command in the background has it ignore interrupts, which is inherited.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Has the garbage collector look at what tests make, and never through what was collected."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Leaves it to the end of the process to free all memory at once."""
    gc.freeze()


def _can_write(folder: Path) -> bool:
    """Makes the folder if need be; returns whether files can be made in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _kind(item: pytest.Item) -> str:
    """Returns the folder of ``ORDER`` that a test is in."""
    return item.path.relative_to(ROOT / "tests").parts[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by their folder, quick ones first; skips what cannot run here, saying why.

    Where files are shared out over processes, whole testbeds, each of which takes all processors,
    are spread evenly among the others, which wait more often; the longest come first, so that all
    end together.
    """
    items.sort(key=lambda item: ORDER.index(_kind(item)))
    if "PYTEST_XDIST_WORKER" in os.environ:
        files = {kind: dict.fromkeys(i.path for i in items if _kind(i) == kind) for kind in ORDER}
        place = {
            file: share * number / len(group)
            for share, group in (
                (BEFORE, files["network"]),
                (1.0, [*files["packet"], *files["unit"]]),
            )
            for number, file in enumerate(group)
        }
        first = {path: at for at, path in enumerate(LONGEST)}
        items.sort(key=lambda item: (first.get(item.path, len(first)), place[item.path]))
    for item in items:
        item.add_marker(_kind(item))
    if any(item.get_closest_marker("network") for item in items):
        try:
            way_in()
        except SandboxError as error:
            for item in items:
                if item.get_closest_marker("network"):
                    item.add_marker(pytest.mark.skip(reason=str(error)))
    if bmv2() is None:
        for item in items:
            if item.get_closest_marker("bmv2"):
                item.add_marker(pytest.mark.skip(reason=NO_BMV2))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists what tests were skipped for, with their number."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
    )
    for reason, count in reasons.most_common():
        terminalreporter.line(f"skipped {count}: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fails a test after its time limit. If the test still does not end, because its threads never
    do, its process is killed, which is a failure, too."""
    mark = item.get_closest_marker("timeout")
    limit = float(mark.args[0] if mark is not None else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(limit + STUCK_SECONDS, exit=True, file=sys.__stderr__)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provides a private folder for run directories."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("RACKHUB_RUNS", str(folder))
    return folder
