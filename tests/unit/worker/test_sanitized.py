# SPDX-License-Identifier: Apache-2.0
"""Runs tests of workers and servers with their C code, and that of virtual time, built with the
address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve()
# The last -O counts. Without optimization gcc takes a quarter of the time, and keeps all accesses.
SANITIZED = """\
#!/bin/sh
exec gcc "$@" -g -O0 -fsanitize=address,undefined -fno-sanitize-recover=undefined
"""
# Python itself loads libraries that are not built so.
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0"}


def runtime_of(library: str) -> Path | None:
    """The path of a sanitizer's runtime; None if this gcc has none."""
    try:
        found = subprocess.run(
            ["gcc", f"-print-file-name={library}"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    path = Path(found.stdout.strip())
    return path if path.is_absolute() else None


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for these builds, with the compiler that makes them; others stay as they are."""
    folder = tmp_path_factory.mktemp("sanitized")
    compiler = folder / "cc"
    compiler.write_text(SANITIZED)
    compiler.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("paths", "which"),
    [
        (
            ("worker/test_transport_network.py", "worker/test_releases.py"),
            "network or losses or float32",
        ),
        (("server/test_root_node.py", "server/test_server.py", "server/test_pipelines.py"), ""),
        (("simulation/test_frames.py", "worker/test_priorities.py"), ""),
    ],
    ids=["workers", "servers", "frames"],
)
def test_native_code_has_no_undefined_behaviour(
    paths: tuple[str, ...], which: str, cache: Path
) -> None:
    runtimes = [runtime_of("libasan.so"), runtime_of("libubsan.so")]
    if None in runtimes:
        pytest.skip("gcc's sanitizers are not installed")
    tests = [HERE.parents[1] / path for path in paths]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"),
            *("-k", which, *map(str, tests)),
        ],
        cwd=HERE.parents[3],
        env={
            **{name: value for name, value in os.environ.items() if "PYTEST" not in name},
            **OPTIONS,
            "CC": str(cache / "cc"),
            "XDG_CACHE_HOME": str(cache),
            "LD_PRELOAD": " ".join(map(str, runtimes)),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "passed" in done.stdout
    assert list(cache.glob("rackhub/hosts-*.so"))
