# SPDX-License-Identifier: Apache-2.0
"""Keeps generated sources in the user's cache directory, by what they are generated from.

Most processes run a program whose library is in the cache (switch/compiler.py), and need its source
only to find it there: reading a source takes a hundredth of the time of generating it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from switch.codegen.source import generate
from switch.compiler import cached_text
from switch.program.model import Program

# What determines the source of a document: how it is read, represented, and written as C.
_FOLDERS = ("loader", "program", "codegen")


def generator_digest(package: Path) -> str:
    """Returns the SHA-256 (hex) of the generator's files in a copy of the package `switch`."""
    found = hashlib.sha256()
    for folder in _FOLDERS:
        for file in sorted((package / folder).rglob("*.py")):
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            found.update(f"{file.relative_to(package)} {content}\n".encode())
    return found.hexdigest()


# On import, so that it is of the files that this process has loaded, even if they change later.
_GENERATOR = generator_digest(Path(__file__).resolve().parents[1])


def cached_source(digest: str, program: Callable[[], Program], traced: bool = False) -> str:
    """Returns the source file of a program (``generate``).

    digest: of the program's document. program: reads it if it has to be generated. Raises what
    ``generate`` and ``program`` raise.
    """
    key = hashlib.sha256(f"{_GENERATOR} {digest} {traced}".encode()).hexdigest()
    return cached_text(f"{key[:40]}.c", lambda: generate(program(), traced))
