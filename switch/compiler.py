# SPDX-License-Identifier: Apache-2.0
"""Compiles C to libraries and C++ to executables, cached by content in the user's cache directory.

The key of a library is everything that its code depends on: the sources, the compiler's version,
the flags, and the processor that `-march=native` stands for. A generated program is linked with the
part of the runtime that does not depend on it, which is compiled once and cached the same way.
Generated sources are kept there, too (switch/codegen/cached.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

RUNTIME = Path(__file__).parent / "runtime"

INCLUDED = "packet_path.c"  # included by the generated source

_COMMON = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-fno-semantic-interposition",
    "-Wl,-Bsymbolic-functions",  # calls within the library are direct
    "-fPIC",
    "-shared",
    "-pthread",
    "-Wall",
)
# For generated programs and the runtime that is linked with them.
FLAGS = (
    *_COMMON,
    "-fno-gcse",  # takes a seventh of gcc's time without making anything faster
    "-fno-strict-aliasing",
    "-Wno-unused-label",
    "-Wno-unused-function",
    "-Wno-unused-variable",
    "-Wno-unused-but-set-variable",
)
# In addition, for a program that traces packets (runtime/trace.h).
TRACED = ("-DSW_TRACE", "-O1")

# By language: environment variable, usual command, and what to install, as Debian's packages, too.
_COMPILERS = {
    "C": ("CC", "cc", "gcc", "gcc libc6-dev"),
    "C++": ("CXX", "c++", "g++", "g++"),
}

# Functions of a library: the types of their result and of their arguments.
Functions = Mapping[str, tuple[Any, Sequence[Any]]]


class CompilerError(RuntimeError):
    """There is no compiler, or it failed; the message holds the end of its output."""


def cache_directory() -> Path:
    """Returns $XDG_CACHE_HOME/rackhub, else ~/.cache/rackhub."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "rackhub"


def compiler(language: str = "C") -> list[str]:
    """Returns the compiler of C or C++: $CC or $CXX, else cc or c++. Raises CompilerError if there
    is none."""
    variable, usual, name, packages = _COMPILERS[language]
    command = shlex.split(os.environ.get(variable, usual))
    if not command or shutil.which(command[0]) is None:
        raise CompilerError(
            f"no {language} compiler '{' '.join(command) or f'(empty ${variable})'}': install"
            f" {name} (Debian: apt install {packages}) or set {variable}"
        )
    return command


def build_executable(source: Path, libraries: Sequence[str]) -> Path:
    """Returns the executable of one file of C++, linked with libraries of the system.

    Its headers are part of its key. Raises CompilerError, OSError (cache directory not writable).
    """
    command = [*compiler("C++"), "-std=c++17"]
    flags = ("-O2", "-Wall", "-Wextra", *(f"-l{one}" for one in libraries))

    def make(made: Path) -> None:
        _compile([*command, "-o", made, source, *flags], source.name)

    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "whole.ii"
        _compile([*command, "-E", "-P", "-o", whole, source], source.name)
        key = _key(command, flags, [whole])
    return _cached(f"{source.stem}-{key[:32]}", make)


def build_program(source: str, flags: tuple[str, ...] = FLAGS) -> Path:
    """Returns the library of a generated program, linked with the runtime.

    Raises CompilerError, OSError (cache directory not writable).
    """
    command = compiler()

    def make(made: Path) -> None:
        program, compiled = made.with_name("program.c"), made.with_name("program.o")
        program.write_text(source)
        with ThreadPoolExecutor(1) as beside:  # both take about as long, so run them in parallel
            making = beside.submit(_build_runtime, command, flags)
            said = _run([*command, *_own(flags), f"-I{RUNTIME}", "-c", "-o", compiled, program])
            runtime = making.result()
        said = said or _run([*command, *flags, "-o", made, compiled, runtime])
        if said is not None:
            kept = cache_directory() / "failed.c"
            shutil.copy(program, kept)
            raise CompilerError(
                f"the C compiler refused the generated program ({kept}):\n{said[-4000:]}"
            )

    return _cached(f"{_key(command, flags, _sources(RUNTIME), source)[:40]}.so", make)


def prepare() -> None:
    """Compiles what programs are linked with, so that the first program loads sooner.

    Raises CompilerError, OSError.
    """
    command = compiler()
    for flags in (FLAGS, (*FLAGS, *TRACED)):
        _build_runtime(command, flags)


def _build_runtime(command: list[str], flags: tuple[str, ...]) -> Path:
    """Returns the object file that every program is linked with: the units that do not depend on
    the program."""
    units = sorted(one for one in RUNTIME.glob("*.c") if one.name != INCLUDED)

    def make(made: Path) -> None:
        _compile([*command, *_own(flags), "-r", "-nostdlib", "-o", made, *units], "the runtime")

    return _cached(f"runtime-{_key(command, flags, _sources(RUNTIME))[:32]}.o", make)


def load_library(
    name: str,
    directory: Path,
    functions: Functions,
    include: Path | None = None,
    flags: tuple[str, ...] = (),
    use_errno: bool = False,
) -> ctypes.CDLL:
    """Returns the library of all C files in a directory, with its functions declared.

    include: a directory with more headers. flags: for the compiler, beside the usual ones. Raises
    CompilerError, OSError (cache directory not writable).
    """
    command, flags = compiler(), (*_COMMON, "-Wextra", *flags)
    headers = [f"-I{include}"] if include else []
    files = [*_sources(directory), *(include.glob("*.h") if include else ())]
    units = sorted(directory.glob("*.c"))

    def make(made: Path) -> None:
        _compile([*command, *flags, *headers, "-o", made, *units], name)

    path = _cached(f"{name}-{_key(command, flags, files)[:32]}.so", make)
    return declare(ctypes.CDLL(str(path), use_errno=use_errno), functions)


def declare(library: ctypes.CDLL, functions: Functions) -> ctypes.CDLL:
    """Sets the types of functions that Python calls; returns the library."""
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def cached_text(name: str, make: Callable[[], str]) -> str:
    """Returns the text of this name in the cache; `make` returns it unless it exists. A text that
    cannot be kept is made again each time."""
    try:
        return (cache_directory() / name).read_text("utf-8")
    except OSError:
        text = make()
    with contextlib.suppress(OSError):
        _cached(name, lambda made: made.write_text(text, "utf-8"))
    return text


def _cached(name: str, make: Callable[[Path], object]) -> Path:
    """Returns the file of this name in the cache; `make` writes it unless it exists."""
    path = cache_directory() / name
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / name
        make(made)
        made.replace(path)  # atomic: another process may make the same
    return path


def _sources(directory: Path) -> list[Path]:
    return [*directory.glob("*.c"), *directory.glob("*.h")]


def _key(
    command: Sequence[str], flags: Sequence[str], files: Iterable[Path], source: str = ""
) -> str:
    key = hashlib.sha256(source.encode())
    for part in (_identity(tuple(command)), " ".join(flags)):
        key.update(part.encode() + b"\0")
    for file in sorted(files):
        key.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return key.hexdigest()


@lru_cache(maxsize=4)
def _identity(command: tuple[str, ...]) -> str:
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


def _own(flags: Sequence[str]) -> list[str]:
    """Returns the flags without those for the linker."""
    return [one for one in flags if one != "-shared" and not one.startswith("-Wl,")]


def _compile(arguments: Sequence[str | Path], what: str) -> None:
    said = _run(arguments)
    if said is not None:
        raise CompilerError(f"the compiler refused {what}:\n{said[-4000:]}")


def _run(arguments: Sequence[str | Path]) -> str | None:
    """Runs a compiler; returns its output if it failed."""
    run = subprocess.run(arguments, capture_output=True, text=True, check=False)
    return run.stderr if run.returncode else None
