# SPDX-License-Identifier: Apache-2.0
"""Chooses, reads and compiles the build of the data plane that jobs run on."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import click

from controller.p4rt.dataplane import DataPlane
from controller.p4rt.entries import EntryError
from hosts.native.loader import load_native
from protocol.header import LANE_BYTES
from specs import jobfile, p4program
from specs.jobfile import JobFileError
from specs.p4program import DataPlaneError
from switch.codegen import cached_source
from switch.compiler import CompilerError, build_program, cache_directory
from switch.loader import parse_program
from switch.program.errors import ProgramError
from switch.program.model import digest_of
from testbed.errors import LaunchError


def read_program(program: Path, p4info: Path, empty_lanes: int = 0) -> DataPlane:
    """Reads a build of the data plane; raises ``DataPlaneError`` if it cannot carry gradients.

    empty_lanes: lanes of chunks without payload; 0 for builds that sum chunks.
    """
    for file in (program, p4info):
        if not file.is_file():
            raise DataPlaneError(f"{file}: no such file")
    try:
        plane = DataPlane.load(program, p4info, empty_lanes)
        document = json.loads(plane.device_config)
    except EntryError as error:
        raise DataPlaneError(str(error)) from error
    except OSError as error:
        raise DataPlaneError(f"{error.filename}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataPlaneError(
            f"{program}: not a program for BMv2 (p4c-bm2-ss writes them): {error}"
        ) from error
    if not isinstance(document, dict) or "pipelines" not in document:
        raise DataPlaneError(f"{program}: JSON, but not a program for BMv2: it has no `pipelines`")
    lanes = plane.lanes
    if empty_lanes and plane.sums:
        raise DataPlaneError(
            f"{p4info}: its switches sum chunks of {lanes} lanes, and jobs with payload: none have"
            " nothing to sum; use a build with BLOCKS=0, or leave --program and --p4info out"
        )
    if not lanes:
        raise DataPlaneError(
            f"{p4info}: its chunks have {lanes} lanes, so there is nothing to sum (a build with"
            " BLOCKS=0 is for jobs with payload: none, in virtual time); use one with more"
        )
    return plane


def program_files(program: Path | None, p4info: Path | None) -> tuple[Path, Path]:
    """Returns the build of ``--program`` and ``--p4info``, or the default build.

    Raises ``DataPlaneError`` if only one of them is given.
    """
    if program is None and p4info is None:
        return p4program.USUAL.files()
    if p4info is None:
        raise DataPlaneError(
            f"--program {program} needs --p4info FILE with it (p4c-bm2-ss --p4runtime-files"
            " writes it)"
        )
    if program is None:
        raise DataPlaneError(f"--p4info {p4info} needs --program FILE with it")
    return program, p4info


def program_for(
    jobs: Sequence[Path], program: Path | None = None, p4info: Path | None = None
) -> tuple[Path, Path, DataPlane]:
    """Returns program, p4info and data plane for these jobs in virtual time.

    Jobs without payload have a build of their own. Raises ``DataPlaneError``; ``preflight.check``
    finds jobs that do not fit together.
    """
    lanes = 0
    for path in jobs:
        with contextlib.suppress(JobFileError):  # `preflight.check` reports it
            spec = jobfile.load(path).spec
            if spec.payload == "none":
                lanes = max(1, spec.chunk_bytes // LANE_BYTES)
                break
    if lanes and program is None and p4info is None:
        program, p4info = p4program.HEADERS.files()
    program, p4info = program_files(program, p4info)
    return program, p4info, _read_program(program, p4info, lanes)


@lru_cache(maxsize=8)
def _read_program(program: Path, p4info: Path, empty_lanes: int) -> DataPlane:
    return read_program(program, p4info, empty_lanes)


def translate(program: Path) -> str:
    """Translates a program to C for the embedded target; raises ``LaunchError`` if unsupported."""
    try:
        text = program.read_bytes()
        return cached_source(digest_of(text), lambda: parse_program(text, str(program)))
    except ProgramError as error:
        raise LaunchError(f"{program}: {error}") from error


def compile_once(program: Path | None) -> None:
    """Compiles the native code of hosts, and a data plane for the embedded target, before all
    processes would do it concurrently.

    program: None if another target runs it. Raises ``LaunchError`` if there is no compiler, if it
    or the target refuses the program, or if the folder of what is compiled cannot be written.
    """
    slow = threading.Timer(1.0, click.echo, ["compiling for this machine (once)"], {"err": True})
    slow.start()
    try:
        load_native()
        if program is not None:
            build_program(translate(program))
    except CompilerError as error:
        raise LaunchError(str(error) if program is None else f"{program}: {error}") from error
    except OSError as error:
        raise LaunchError(
            f"{cache_directory()}: compiled programs cannot be kept there: {error.strerror};"
            " XDG_CACHE_HOME=FOLDER in the environment chooses another folder"
        ) from error
    finally:
        slow.cancel()
