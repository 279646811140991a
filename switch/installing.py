# SPDX-License-Identifier: Apache-2.0
"""Making a launcher for this target under BMv2's name, for tools that find BMv2 by it.

It runs the Python that made it, with what that has installed, whatever PYTHONPATH is set for the
tool and whatever lies where the tool was started.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from switch.identity import BMV2, COMMAND

_MARK = "# Made by rackhub-switch --install-as: starts rackhub-switch with BMv2's defaults."
_LAUNCHER = """#!/bin/sh
{mark}
exec {python} -E -c {program} "$0" "$@"
"""
# Instead of `-m switch`, which would look where it was started first. argv[0]: the launcher's name.
_PROGRAM = (
    "import sys; del sys.path[0], sys.argv[0]; from switch.__main__ import main; sys.exit(main())"
)


class InstallError(Exception):
    """The launcher cannot be made; the message says why and what to do."""


def install(name: str, directory: Path) -> Path:
    """Makes directory/name start this target with BMv2's defaults; returns that path.

    Replaces what it made there before, and nothing else. Raises InstallError.
    """
    if not name.startswith(BMV2) or "/" in name:
        raise InstallError(f"the name must begin with {BMV2}: others have no defaults of BMv2's")
    if not directory.is_dir():
        raise InstallError("no such directory: make it, or give another one")
    path = directory.absolute() / name
    text = _LAUNCHER.format(
        mark=_MARK, python=shlex.quote(sys.executable), program=shlex.quote(_PROGRAM)
    )
    made = path.with_name(f"{name}.{os.getpid()}")  # so that the path never holds half of it
    try:
        if os.path.lexists(path) and not is_launcher(path):
            raise InstallError("that exists and is something else: remove it or give another DIR")
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
    """True if that starts this target: a launcher made here, or a link to the command."""
    if path.resolve().name == COMMAND:
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:  # BMv2's own is large
        return _MARK.encode() in file.read(1024)


def _try(launcher: Path) -> None:
    """Raises InstallError if it does not start, for lack of this package among Python's."""
    run = subprocess.run(
        [launcher, "--version"], capture_output=True, text=True, check=False, cwd="/"
    )
    if run.returncode:
        said = run.stderr.strip().rpartition("\n")[2]
        raise InstallError(
            f"{sys.executable} cannot start it from there ({said}): install rackhub-switch for it"
        )
