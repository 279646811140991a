# SPDX-License-Identifier: Apache-2.0
"""Marks the status of a call whose job goes on without the member that made it.

The status's code is ABORTED, as that of a job that has failed; its trailing metadata differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

KEY = "left-behind"
LOST = "lost"
"""The member's lease ended, or it did not do its part."""
REPLACED = "replaced"
"""Another process is in its place."""


def left_behind(metadata: Iterable[Any] | None) -> str:
    """Returns LOST, REPLACED, or "" for trailing metadata, pairs of key and value, without mark."""
    return str(dict(metadata or ()).get(KEY, ""))
