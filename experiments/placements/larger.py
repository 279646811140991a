# SPDX-License-Identifier: Apache-2.0
"""A larger job with every placement. Its loss equals that of a single process bit by bit, and with
float16 gradients it is within a tolerance."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from observability.messages.summary import FinishedJob
from specs.placements import KINDS

JOB: dict[str, Any] = {
    "workload": "characters",
    "hidden": [128],
    "iterations": 100,
    "batch": 1024,
    "optimizer": {
        "name": "adam",
        "rate": 0.008,
        "schedule": {"kind": "cosine", "warmup": 10, "floor": 0.05},
    },
}
FULL, HALF = "float32", "float16"
# The relative deviation allowed to float16 from the final loss with float32 gradients.
TOLERANCE = 0.01


@dataclass(frozen=True)
class Row:
    """A placement with its first tree, and the type of gradients."""

    placement: str
    gradients: str

    @property
    def name(self) -> str:
        """The job's name."""
        return f"larger-{self.placement}-{self.gradients}"

    @property
    def job(self) -> dict[str, Any]:
        """Returns the job file's content."""
        where = {"placement": self.placement, "gradients": self.gradients}
        return {"name": self.name, **JOB, **where}


ROWS = tuple(Row(kind.name, gradients) for kind in KINDS for gradients in (FULL, HALF))


@dataclass(frozen=True)
class Line:
    """The result of a row on a target.

    matches: Weights equal the reference's, bit by bit.
    loss: Of held-out text, in nats per character.
    problems: Failed checks.
    """

    placement: str
    gradients: str
    target: str
    matches: bool | None = None
    loss: float | None = None
    accuracy: float | None = None
    seconds: float | None = None
    problems: list[str] = field(default_factory=list)

    def message(self) -> dict[str, Any]:
        """Returns the JSON object."""
        return asdict(self)


def judge(row: Row, target: str, summary: FinishedJob) -> Line:
    """Checks a row by its job's summary."""
    line = Line(
        row.placement,
        row.gradients,
        target,
        summary["matches_reference"],
        summary["test_loss"],
        summary["test_accuracy"],
        statistics.median(summary["seconds_per_iteration"]),
    )
    if line.matches is not True:
        line.problems.append("the weights are not the reference's")
    return line


def failed(row: Row, target: str, text: str) -> Line:
    """Returns the line of a job that failed."""
    return Line(row.placement, row.gradients, target, problems=[text])


def compare(lines: Sequence[Line]) -> None:
    """Adds a problem where float16 exceeds the tolerance."""
    for line in lines:
        apart = difference(line, lines)
        if apart is not None and apart > TOLERANCE:
            line.problems.append(f"its loss is {apart:.2%} from that with {FULL} gradients")


def difference(line: Line, lines: Sequence[Line]) -> float | None:
    """Returns the relative difference of a float16 line's loss from its float32 line's; None for
    other lines, or if one of the two failed."""
    if line.gradients != HALF or line.loss is None:
        return None
    for other in lines:
        same = (other.placement, other.target) == (line.placement, line.target)
        if same and other.gradients == FULL and other.loss:
            return abs(line.loss / other.loss - 1)
    return None


def cells(line: Line, lines: Sequence[Line]) -> Iterator[str]:
    """Formats a line as the columns of HEADINGS."""
    apart = difference(line, lines)
    yield line.placement
    yield line.target
    yield line.gradients
    yield {True: "same", None: "", False: "DIFFER"}[line.matches]
    yield "" if line.loss is None else f"{line.loss:.5f}"
    yield "" if apart is None else f"{apart:.3%}"
    yield "" if line.accuracy is None else f"{line.accuracy:.3f}"
    yield "" if line.seconds is None else f"{line.seconds:.3f}"


HEADINGS = (
    "placement", "target", "gradients", "weights", "loss", "from float32", "accuracy", "s/iteration"
)  # fmt: skip
