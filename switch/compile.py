# SPDX-License-Identifier: Apache-2.0
"""Generated C -> shared library, kept by content in the user's cache directory.

The key of a library is everything that its code depends on: the generated source, the runtime's
sources, the compiler's version, the flags, and the processor that `-march=native` means.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

RUNTIME = Path(__file__).parent / "runtime"

INCLUDED = "flow.c"  # by the generated source itself

FLAGS = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-fno-strict-aliasing",
    "-fno-semantic-interposition",
    "-Wl,-Bsymbolic-functions",
    "-fPIC",
    "-shared",
    "-pthread",
    "-Wall",
    "-Wno-unused-label",
    "-Wno-unused-function",
    "-Wno-unused-variable",
    "-Wno-unused-but-set-variable",
)


class CompilerError(RuntimeError):
    """No C compiler, or it failed; the message holds the end of what it said."""


def cache_directory() -> Path:
    """$XDG_CACHE_HOME/rackhub, else ~/.cache/rackhub."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "rackhub"


def compiler() -> list[str]:
    """The C compiler: $CC, else cc. Raises CompilerError if there is none."""
    command = shlex.split(os.environ.get("CC", "cc"))
    if not command or shutil.which(command[0]) is None:
        raise CompilerError(
            f"no C compiler '{' '.join(command) or '(empty $CC)'}': install gcc (Debian: "
            "apt install gcc libc6-dev) or set CC"
        )
    return command


@lru_cache(maxsize=4)
def compiler_identity(command: tuple[str, ...]) -> str:
    """Version of the compiler and what `native` means to it here."""
    run = subprocess.run(
        [*command, "-march=native", "-E", "-v", "-x", "c", os.devnull],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise CompilerError(f"{' '.join(command)} does not work:\n{run.stderr[-2000:]}")
    # The options line of cc1 spells out every instruction set that native stands for.
    lines = [one for one in run.stderr.splitlines() if "version" in one or "cc1" in one]
    return "\n".join([platform.machine(), *lines])


def build(source: str, flags: tuple[str, ...] = FLAGS) -> Path:
    """Compiles the source with the runtime unless the cache has it; returns the library's path.

    Raises CompilerError, OSError (cache directory not writable).
    """
    command = compiler()
    key = hashlib.sha256()
    for part in (compiler_identity(tuple(command)), " ".join(flags), source):
        key.update(part.encode() + b"\0")
    sources = sorted(RUNTIME.glob("*.c"))
    for file in sorted([*sources, *RUNTIME.glob("*.h")]):
        key.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    directory = cache_directory()
    library = directory / f"{key.hexdigest()[:40]}.so"
    if library.exists():
        return library
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        program, made = Path(scratch) / "program.c", Path(scratch) / "program.so"
        program.write_text(source)
        arguments = [
            *command,
            *flags,
            f"-I{RUNTIME}",
            "-o",
            str(made),
            str(program),
            *(str(one) for one in sources if one.name != INCLUDED),
        ]
        run = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if run.returncode:
            kept = directory / "failed.c"
            shutil.copy(program, kept)
            raise CompilerError(
                f"the C compiler refused the generated program ({kept}):\n{run.stderr[-4000:]}"
            )
        made.replace(library)  # atomic: others may compile the same
    return library
