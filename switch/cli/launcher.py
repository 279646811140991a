# SPDX-License-Identifier: Apache-2.0
"""Creates a launcher for this target under BMv2's name, for tools that find BMv2 by name.

The launcher runs the Python that created it with the packages installed there, whatever PYTHONPATH
and the current directory are.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from switch.cli.bmv2 import BMV2, COMMAND
from switch.compiler import CompilerError, prepare
from switch.ports import PortsError, interfaces

_MARK = "# Made by rackhub-switch --install-as: starts rackhub-switch with BMv2's defaults."
_LAUNCHER = """#!/bin/sh
{mark}
exec {python} -E -c {program} "$0" "$@"
"""
# Instead of `-m switch`, which looks in the current directory first. argv[0]: the launcher's name.
_PROGRAM = (
    "import sys; del sys.path[0], sys.argv[0]; from switch.__main__ import main; sys.exit(main())"
)


class InstallError(Exception):
    """The launcher cannot be created; the message gives the reason and the remedy."""


def install(name: str, directory: Path) -> Path:
    """Creates directory/name, which starts this target with BMv2's defaults; returns that path.

    Replaces only launchers that it created before. Raises InstallError.
    """
    if not name.startswith(BMV2) or "/" in name:
        raise InstallError(f"the name must begin with {BMV2}: only such names have BMv2's defaults")
    if not directory.is_dir():
        raise InstallError("no such directory: make it, or give another one")
    path = directory.absolute() / name
    text = _LAUNCHER.format(
        mark=_MARK, python=shlex.quote(sys.executable), program=shlex.quote(_PROGRAM)
    )
    made = path.with_name(f"{name}.{os.getpid()}")  # never leaves a partial file at the path
    try:
        if os.path.lexists(path) and not is_launcher(path):
            raise InstallError(
                "the path exists and is something else: remove it or give another DIR"
            )
        made.write_text(text)
        made.chmod(0o755)
        _try(made)
        made.replace(path)
    except OSError as error:
        raise InstallError(f"{error.strerror}: {error.filename}") from error
    finally:
        made.unlink(missing_ok=True)
    return path


def is_launcher(path: Path) -> bool:
    """Returns True if a path starts this target: a launcher created here, or a link to the
    command."""
    if path.resolve().name == COMMAND:
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:  # BMv2's own file is large
        return _MARK.encode() in file.read(1024)


def _try(launcher: Path) -> None:
    """Starts the launcher. Raises InstallError if its Python does not find this package."""
    run = subprocess.run(
        [launcher, "--version"], capture_output=True, text=True, check=False, cwd="/"
    )
    if run.returncode:
        said = run.stderr.strip().rpartition("\n")[2]
        raise InstallError(
            f"{sys.executable} cannot start it from there ({said}): install rackhub-switch for it"
        )


def precompile() -> None:
    """Fills the compiler cache. Tools give up on a switch that takes ten seconds to start.

    Raises InstallError.
    """
    try:
        prepare()
        interfaces.load_driver()
    except (CompilerError, PortsError, OSError) as error:
        raise InstallError(f"a switch could not start: {error}") from error
