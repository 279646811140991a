# SPDX-License-Identifier: Apache-2.0
"""Reads a process's state and the end of its log."""

from __future__ import annotations

from pathlib import Path

TAIL_LINES = 20
STOPPED = ("T", "t")  # states of a process that a signal or a debugger stopped


def tail(log: Path) -> str:
    """Returns the last lines of a log, with a heading that names the file."""
    try:
        text = log.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"(its log {log} cannot be read: {error.strerror})"
    if not text:
        return f"(its log {log} is empty)"
    heading = f"--- last lines of {log}" if len(text) > TAIL_LINES else f"--- {log}"
    return "\n".join([heading, *text[-TAIL_LINES:]])


def state_of(pid: int) -> str:
    """Returns a process's state from ``/proc/PID/stat`` (proc(5)): R, S, T...; "" if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]
