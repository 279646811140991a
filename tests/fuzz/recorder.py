# SPDX-License-Identifier: Apache-2.0
"""Records Python's writes to a switch as C tables, for the harness."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from switch.pipeline import pipeline

_KEPT = {
    "sw_table_insert", "sw_group_set", "sw_session_set", "sw_member_set", "sw_choices_set",
}  # fmt: skip


@dataclass
class Recording:
    """Calls that fill a switch, in order: (function, arguments without the switch)."""

    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    def source(self) -> str:
        """Returns the C source of setup.h's tables."""
        entries, groups, sessions, members, choices = [], [], [], [], []
        for name, arguments in self.calls:
            if name == "sw_table_insert":
                table, value, mask, low, high, priority, action, args = arguments
                entries.append(
                    f"    {{{table}, {_words(value)}, {_words(mask)}, {_words(low)}, "
                    f"{_words(high)}, {priority}, {action}, {_words(args)}}},"
                )
            elif name == "sw_member_set":
                profile, number, action, args = arguments
                members.append(f"    {{{profile}, {number}, {action}, {_words(args)}}},")
            elif name == "sw_choices_set":
                profile, number, listed, count = arguments
                numbers = ", ".join(map(str, listed[: max(count, 1)]))
                choices.append(
                    f"    {{{profile}, {number}, (const uint32_t[]){{{numbers}}}, {count}}},"
                )
            elif name == "sw_group_set":
                number, replicas, count = arguments
                groups.append(f"    {{{number}, {_replicas(replicas, count)}, 0, 0}},")
            else:
                number, replicas, count, truncate, priority = arguments
                copies = _replicas(replicas, count)
                sessions.append(f"    {{{number}, {copies}, {truncate}, {priority}}},")
        return "\n".join(
            [
                '#include "setup.h"',
                *_array("struct setup_entry", "entries", "entry_count", entries),
                *_array("struct setup_list", "groups", "group_count", groups),
                *_array("struct setup_list", "sessions", "session_count", sessions),
                *_array("struct setup_member", "members", "member_count", members),
                *_array("struct setup_choice", "choices", "choice_count", choices),
            ]
        )


class _Recorder:
    """Wraps a program's library and records every call."""

    def __init__(self, library: ctypes.CDLL, recording: Recording) -> None:
        self._library = library
        self._recording = recording

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        if name not in _KEPT:
            return function

        def call(handle: Any, *arguments: Any) -> Any:
            # Copied, as callers may reuse their arrays.
            kept = tuple(list(one) if isinstance(one, ctypes.Array) else one for one in arguments)
            self._recording.calls.append((name, kept))
            return function(handle, *arguments)

        return call


@contextlib.contextmanager
def recorded() -> Iterator[Recording]:
    """Records writes to pipelines created in the context, including the program's own entries."""
    recording = Recording()
    declare = pipeline.declare
    with mock.patch.object(
        pipeline, "declare", lambda *given: _Recorder(declare(*given), recording)
    ):
        yield recording


def _array(kind: str, name: str, count: str, lines: Sequence[str]) -> list[str]:
    return [
        f"const {kind} setup_{name}[] = {{",
        *(lines or ["    {0},"]),
        "};",
        f"const size_t setup_{count} = {len(lines)};",
    ]


def _words(values: Sequence[int]) -> str:
    return "(const uint64_t[]){" + ", ".join(f"{value:#x}ull" for value in values) + "}"


def _replicas(replicas: Sequence[Any], count: int) -> str:
    listed = ", ".join(f"{{{one.port}, {one.instance}}}" for one in replicas[:count])
    return f"(const struct sw_replica[]){{{listed or '{0, 0}'}}}, {count}"
