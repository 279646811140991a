# SPDX-License-Identifier: Apache-2.0
"""Parameter types for files, checked before a command runs.

A problem is reported like an error in a file: a line that begins with the path, and exit status 1.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import click

from observability import pictures
from specs import shipped
from topologies.model.documents import DocumentError, Problem, check_there


class _Input(click.Path):
    """An existing, readable file."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        check_there(value)
        if not os.access(value, os.R_OK):
            raise _problem(value, f"cannot be read: {os.strerror(errno.EACCES)}")
        return Path(value)


class _Job(_Input):
    """A job file, by path or by the name of a shipped one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return super().convert(shipped.find(value, "jobs"), param, ctx)


class _Output(click.Path):
    """A file to write or overwrite."""

    def __init__(self, *, allow_dash: bool = False) -> None:
        super().__init__(dir_okay=False, allow_dash=allow_dash, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(value)
        if self.allow_dash and str(value) == "-":
            return path
        around = path.parent
        for wrong, reason in (
            (path.is_dir(), errno.EISDIR),
            (not around.exists(), errno.ENOENT),
            (not around.is_dir(), errno.ENOTDIR),
            (not os.access(path if path.exists() else around, os.W_OK), errno.EACCES),
        ):
            if wrong:
                raise _problem(path, f"cannot be written: {os.strerror(reason)}")
        return path


class _Picture(_Output):
    """An image to write, in the format of its file name suffix."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if Path(value).suffix not in pictures.SUFFIXES:
            self.fail(f"{str(value)!r}: {pictures.KINDS}", param, ctx)
        return super().convert(value, param, ctx)


def _problem(path: str | Path, text: str) -> DocumentError:
    return DocumentError([Problem(str(path), 0, "", text)])


FILE = _Input()
JOB = _Job()
OUTPUT = _Output()
OUTPUT_OR_DASH = _Output(allow_dash=True)
PICTURE = _Picture()
