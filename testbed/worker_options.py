# SPDX-License-Identifier: Apache-2.0
"""The options of a worker process (``testbed.worker``)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class WorkerOptions:
    """The options, which ``testbed.worker.parser`` explains."""

    job: Path
    rank: int
    world: int
    service: str
    address: str
    queue_bytes: int | None = None
    link_rate: int = 0
    weights: Path | None = None
    restore: Path | None = None
    checkpoints: str | None = None

    def arguments(self) -> list[str]:
        """Returns them as the process takes them."""
        given = [(name, value) for name, value in vars(self).items() if value is not None]
        return [
            text for name, value in given for text in (f"--{name.replace('_', '-')}", str(value))
        ]
