# SPDX-License-Identifier: Apache-2.0
"""Loads the native code of simulated networks (simulation/native)."""

from __future__ import annotations

import ctypes
from pathlib import Path

from simulation.errors import VirtualError
from switch.compiler import CompilerError, Functions, load_library

_FOLDER = Path(__file__).parents[1] / "native"


def load_native(functions: Functions) -> ctypes.CDLL:
    """Returns the library with these functions declared. Raises VirtualError without a compiler."""
    try:
        return load_library("simulation", _FOLDER, functions)
    except CompilerError as error:
        raise VirtualError(str(error)) from error
