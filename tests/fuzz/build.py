# SPDX-License-Identifier: GPL-2.0-only
"""Builds the harness with a program, by clang with libFuzzer and the sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from switch.codegen import generate
from switch.compiler import FLAGS, INCLUDED, RUNTIME
from switch.loader import load_program
from tests.fuzz.subjects import Subject

HERE = Path(__file__).parent
REGRESSIONS = HERE / "regressions"  # inputs that once failed, by program
OURS = ("harness.c", "control.c", "kernel.c", "lines.c", "mutate.c")
# The rest of interfaces/ is sockets, which the fuzzer replaces, and a probe of the system.
INTERFACES = (
    "capture.c", "delayed_arrivals.c", "forward.c", "offload.c", "port_setup.c", "ports_thread.c",
    "receive.c", "record_ring.c", "traffic_manager.c", "transmit.c",
)  # fmt: skip
CALLS = ("sendmmsg", "clock_gettime", "if_nametoindex")
MEMORY = ("malloc", "calloc", "realloc", "aligned_alloc")

SANITIZE = (
    *(one for one in FLAGS if not one.startswith(("-O", "-march", "-shared", "-fno-semantic"))),
    "-O1",
    "-gline-tables-only",
    "-fsanitize=address,undefined,fuzzer-no-link",
    "-fno-sanitize-recover=all",
    f"-I{RUNTIME}",
    f"-I{RUNTIME / 'interfaces'}",
    f"-I{HERE}",
)
COVERAGE = ("-fprofile-instr-generate", "-fcoverage-mapping")


def compiler() -> str | None:
    """Returns the path of clang, if it is installed."""
    return shutil.which("clang")


def build(subjects: dict[str, Subject], directory: Path, more: Sequence[str] = ()) -> None:
    """Builds directory/NAME for every subject. more: flags. Raises CalledProcessError."""
    directory.mkdir(parents=True, exist_ok=True)
    flags = [*SANITIZE, *more]
    renamed, memory = ([f"-D{name}=fuzz_{name}" for name in names] for names in (CALLS, MEMORY))
    common = [
        *((HERE / name, [], name) for name in OURS),
        *((RUNTIME / "interfaces" / name, renamed, name) for name in INTERFACES),
        *(
            (path, memory, path.name)
            for path in sorted(RUNTIME.glob("*.c"))
            if path.name != INCLUDED
        ),
    ]
    jobs = [(source, extra, directory / f"{name}.o") for source, extra, name in common]
    shared = [made for _, _, made in jobs]
    own: dict[str, list[Path]] = {}
    for name, subject in subjects.items():
        program, tables = directory / f"program-{name}.c", directory / f"tables-{name}.c"
        program.write_text(generate(load_program(subject.path)))
        tables.write_text(subject.tables.source())
        own[name] = [source.with_suffix(".o") for source in (program, tables)]
        # The longest first.
        jobs[:0] = [(program, [], own[name][0]), (tables, [], own[name][1])]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: _run(*flags, *job[1], "-c", job[0], "-o", job[2]), jobs))
        list(
            pool.map(
                lambda name: _run(
                    *more, "-fsanitize=address,undefined,fuzzer", "-pthread", *shared,
                    *own[name], "-o", directory / name,
                ),
                subjects,
            )
        )  # fmt: skip


def write_seeds(subject: Subject, directory: Path) -> None:
    """Writes a file for each seed input."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in subject.seeds.items():
        (directory / name).write_bytes(data)


def _run(*arguments: str | Path) -> None:
    done = subprocess.run(
        ["clang", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"clang {' '.join(map(str, arguments))}:\n{done.stderr[-4000:]}")
