# SPDX-License-Identifier: Apache-2.0
"""Compiles what every switch needs before the first one starts."""

from __future__ import annotations

from switch.cli.launcher import InstallError
from switch.compile import CompilerError, prepare
from switch.ports import interfaces


def precompile() -> None:
    """Fills the compiler cache. Tools give up on a switch that takes ten seconds to start.

    Raises InstallError.
    """
    try:
        prepare()
        interfaces.library()
    except (CompilerError, interfaces.PortsError, OSError) as error:
        raise InstallError(f"a switch could not start: {error}") from error
