# SPDX-License-Identifier: Apache-2.0
"""Errors in programs, and the place in the P4 source that they name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from switch.program.expressions import Refused


@dataclass(frozen=True)
class Source:
    """The position of a construct in the P4 source."""

    file: str
    line: int
    column: int
    fragment: str

    def __str__(self) -> str:
        return f"{self.file}({self.line})"


class ProgramError(ValueError):
    """A file that is not a BMv2 program: unreadable, of another format version, or inconsistent."""


class UnsupportedConstruct(ProgramError):  # noqa: N818
    """A construct of the program that this target does not execute.

    construct: such as "header union 'inner'"
    where: `file(line)` in the P4 source, or None
    """

    def __init__(self, construct: str, source: Source | None = None) -> None:
        self.construct = construct
        self.where = str(source) if source else None
        place = f"{self.where}: " if self.where else ""
        fragment = f" ({source.fragment})" if source and source.fragment else ""
        super().__init__(f"{place}{construct} is not supported by this target{fragment}")


@contextmanager
def refused_at(source: Source | None, within: str = "") -> Iterator[None]:
    """Turns Refused into UnsupportedConstruct with its position and the object that contains it."""
    try:
        yield
    except Refused as refused:
        place = f" in {within}" if within else ""
        raise UnsupportedConstruct(f"{refused}{place}", source) from refused


@contextmanager
def consistent(name: str) -> Iterator[None]:
    """Turns any error that a malformed document causes while it is read into a ProgramError."""
    try:
        yield
    except (ProgramError, Refused):
        raise
    except (
        ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError,
        StopIteration, TypeError, ValueError,
    ) as error:  # fmt: skip
        raise ProgramError(f"{name}: inconsistent program: {type(error).__name__} {error}") from (
            error
        )
