# SPDX-License-Identifier: Apache-2.0
"""Compiles our own C sources to a shared library, cached by content beside compiled programs."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path

from switch.compile import CompilerError, cache_directory, compiler, compiler_identity

FLAGS = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fno-semantic-interposition",
    "-Wl,-Bsymbolic-functions",  # calls within the library are direct
    "-Wall",
    "-Wextra",
)


def build(name: str, directory: Path, include: Path, flags: tuple[str, ...] = ()) -> Path:
    """Returns the library of all C files in a directory, compiled unless it is cached.

    include: a directory with more headers. flags: for the compiler, beside the usual ones. Raises
    CompilerError, OSError (cache not writable).
    """
    command = compiler()
    units = sorted(directory.glob("*.c"))
    key = hashlib.sha256()
    for part in (compiler_identity(tuple(command)), " ".join((*FLAGS, *flags)), name):
        key.update(part.encode() + b"\0")
    for file in [*units, *sorted(directory.glob("*.h")), *sorted(include.glob("*.h"))]:
        key.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    library = cache_directory() / f"{name}-{key.hexdigest()[:32]}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        made = Path(scratch) / library.name
        run = subprocess.run(
            [*command, *FLAGS, *flags, f"-I{include}", "-o", str(made), *map(str, units)],
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            raise CompilerError(f"the C compiler refused {name}:\n{run.stderr[-4000:]}")
        made.replace(library)  # atomic: another process may compile the same
    return library
