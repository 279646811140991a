# SPDX-License-Identifier: Apache-2.0
"""Compiles generated C to a shared library, cached by content in the user's cache directory.

The key of a library is everything that its code depends on: the generated source, the runtime's
sources, the compiler's version, the flags, and the processor that `-march=native` stands for. The
runtime's separate units are compiled once and cached the same way.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

RUNTIME = Path(__file__).parent / "runtime"

INCLUDED = "packet_path.c"  # included by the generated source

FLAGS = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-fno-gcse",  # takes a seventh of gcc's time without making anything faster
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
# In addition, for a program that traces packets (runtime/trace.h).
TRACED = ("-DSW_TRACE", "-O1")


class CompilerError(RuntimeError):
    """There is no C compiler, or it failed; the message holds the end of its output."""


def cache_directory() -> Path:
    """Returns $XDG_CACHE_HOME/rackhub, else ~/.cache/rackhub."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "rackhub"


def compiler() -> list[str]:
    """Returns the C compiler: $CC, else cc. Raises CompilerError if there is none."""
    command = shlex.split(os.environ.get("CC", "cc"))
    if not command or shutil.which(command[0]) is None:
        raise CompilerError(
            f"no C compiler '{' '.join(command) or '(empty $CC)'}': install gcc (Debian: "
            "apt install gcc libc6-dev) or set CC"
        )
    return command


@lru_cache(maxsize=4)
def compiler_identity(command: tuple[str, ...]) -> str:
    """Returns the version of the compiler and what `native` stands for on this machine."""
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
    """Returns the path of a program's library, compiled and linked with the runtime unless it is
    cached.

    Raises CompilerError, OSError (cache directory not writable).
    """
    command = compiler()
    key = hashlib.sha256(source.encode())
    key.update(_runtime_key(command, flags).encode())
    library = cache_directory() / f"{key.hexdigest()[:40]}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=library.parent) as scratch,
        ThreadPoolExecutor(1) as beside,  # both take about as long, so run them in parallel
    ):
        making = beside.submit(_runtime, command, flags)
        program, made = Path(scratch) / "program.c", Path(scratch) / "program.so"
        compiled = program.with_suffix(".o")
        program.write_text(source)
        said = _run([*command, *_own(flags), f"-I{RUNTIME}", "-c", "-o", compiled, program])
        runtime = making.result()
        said = said or _run([*command, *flags, "-o", made, compiled, runtime])
        if said is not None:
            kept = library.parent / "failed.c"
            shutil.copy(program, kept)
            raise CompilerError(
                f"the C compiler refused the generated program ({kept}):\n{said[-4000:]}"
            )
        made.replace(library)  # atomic: others may compile the same
    return library


def prepare() -> None:
    """Compiles what programs are linked with, so that the first program loads sooner.

    Raises CompilerError, OSError.
    """
    command = compiler()
    for flags in (FLAGS, (*FLAGS, *TRACED)):
        _runtime(command, flags)


def _runtime(command: list[str], flags: tuple[str, ...]) -> Path:
    """Returns the object file that every program is linked with, compiled unless it is cached: the
    units that do not depend on the program."""
    made = cache_directory() / f"runtime-{_runtime_key(command, flags)[:32]}.o"
    if made.exists():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    units = sorted(one for one in RUNTIME.glob("*.c") if one.name != INCLUDED)
    with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
        linked = Path(scratch) / made.name
        said = _run([*command, *_own(flags), "-r", "-nostdlib", "-o", linked, *units])
        if said is not None:
            raise CompilerError(f"the C compiler refused the switch's runtime:\n{said[-4000:]}")
        linked.replace(made)
    return made


def _own(flags: Sequence[str]) -> list[str]:
    """Returns the flags without those for the linker."""
    return [one for one in flags if one != "-shared" and not one.startswith("-Wl,")]


def _runtime_key(command: list[str], flags: tuple[str, ...]) -> str:
    key = hashlib.sha256()
    for part in (compiler_identity(tuple(command)), " ".join(flags)):
        key.update(part.encode() + b"\0")
    for file in sorted([*RUNTIME.glob("*.c"), *RUNTIME.glob("*.h")]):
        key.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return key.hexdigest()


def _run(arguments: Sequence[str | Path]) -> str | None:
    """Runs a compiler; returns its output if it failed."""
    run = subprocess.run(arguments, capture_output=True, text=True, check=False)
    return run.stderr if run.returncode else None
