# SPDX-License-Identifier: GPL-2.0-only
"""Builds harnesses with what they fuzz, by clang with libFuzzer and the sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hosts.native.loader import FLAGS as HOST_FLAGS
from switch.codegen import generate
from switch.compiler import FLAGS, INCLUDED, RUNTIME
from switch.loader import load_program
from tests.fuzz.subjects import HOSTS, Native, Subject

HERE = Path(__file__).parent
REGRESSIONS = HERE / "regressions"  # inputs that once failed, by subject
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
# A cast that overflows is undefined, too, and no default of clang's.
NATIVE = (*HOST_FLAGS, "-fsanitize=float-cast-overflow", f"-I{HOSTS}")
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
    shared = [(source, extra, directory / f"{name}.o") for source, extra, name in common]
    jobs: list[tuple[Path, Sequence[str], Path]] = []
    linked: dict[str, list[Path]] = {}
    for name, subject in subjects.items():
        if isinstance(subject, Native):
            own = [(one, NATIVE, directory / f"{name}-{one.stem}.o") for one in subject.sources]
            linked[name] = [made for *_, made in own]
            jobs += own
            continue
        program, tables = directory / f"program-{name}.c", directory / f"tables-{name}.c"
        program.write_text(generate(load_program(subject.path)))
        tables.write_text(subject.tables.source())
        linked[name] = [*(source.with_suffix(".o") for source in (program, tables)),
                        *(made for *_, made in shared)]  # fmt: skip
        # The longest first.
        jobs[:0] = [(source, (), source.with_suffix(".o")) for source in (program, tables)]
    if not all(isinstance(one, Native) for one in subjects.values()):
        jobs += shared
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: _run(*flags, *job[1], "-c", job[0], "-o", job[2]), jobs))
        list(
            pool.map(
                lambda name: _run(
                    *more, "-fsanitize=address,undefined,fuzzer", "-pthread", *linked[name],
                    "-lm", "-o", directory / name,
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
