# SPDX-License-Identifier: Apache-2.0
"""Holds the summaries that runs write to their model."""

from __future__ import annotations

from pathlib import Path

from pydantic import ConfigDict, TypeAdapter

from observability.messages.summary import RunSummary

_SUMMARY: TypeAdapter[RunSummary] = TypeAdapter(RunSummary, config=ConfigDict(extra="forbid"))


def check_summary(path: Path) -> None:
    """Raises ``ValidationError`` for a missing or unknown key, or a value of another type."""
    _SUMMARY.validate_json(path.read_bytes(), strict=True)
