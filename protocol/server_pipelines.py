# SPDX-License-Identifier: Apache-2.0
"""Server pipelines, and the ablation of their parts for comparison.

*Tall*: a chunk's copies are added as they arrive. *Wide*: they are kept until all have arrived. An
ablation leaves out, to measure its cost, adding copies, the optimizer's steps, or sending results
unasked, PHub's elision of the pull (SoCC'18, section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protocol import jobs_pb2

TALL = "tall"
WIDE = "wide"
KINDS = (TALL, WIDE)
AGGREGATION = "aggregation"
OPTIMIZER = "optimizer"
ELISION = "elision"
ABLATIONS = (AGGREGATION, OPTIMIZER, ELISION)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline: `kind` is one of KINDS, `ablated` some of ABLATIONS in that order.

    Raises ValueError for others.
    """

    kind: str = TALL
    ablated: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"pipeline {self.kind[:40]!r} is none of {', '.join(KINDS)}")
        for one in self.ablated:
            if one not in ABLATIONS:
                text = f"{one[:40]!r} cannot be left out of a server's work; allowed: "
                raise ValueError(text + ", ".join(ABLATIONS))
        object.__setattr__(self, "ablated", tuple(a for a in ABLATIONS if a in self.ablated))

    def __str__(self) -> str:
        return f"{self.kind}, without {', '.join(self.ablated)}" if self.ablated else self.kind

    @property
    def wide(self) -> bool:
        """True if copies are kept until all have arrived."""
        return self.kind == WIDE

    @property
    def adds(self) -> bool:
        """True if copies are added."""
        return AGGREGATION not in self.ablated

    @property
    def steps(self) -> bool:
        """True if the optimizer's steps are taken, where there is one."""
        return OPTIMIZER not in self.ablated

    @property
    def pulls(self) -> bool:
        """True if results are only announced, and workers request them."""
        return ELISION in self.ablated

    @property
    def differs(self) -> bool:
        """True if results differ from those of a job without ablation."""
        return not (self.adds and self.steps)

    @staticmethod
    def from_message(message: jobs_pb2.Pipeline) -> Pipeline:
        """Raises ValueError."""
        return Pipeline(message.kind or TALL, tuple(message.ablated))

    def to_message(self) -> jobs_pb2.Pipeline:
        return jobs_pb2.Pipeline(kind=self.kind, ablated=self.ablated)


USUAL = Pipeline()


def refusal(
    pipeline: Pipeline, tree: str, *, at_server: bool, switches: bool, optimizer: bool
) -> str:
    """Returns the reason why a job cannot have this pipeline; empty if it can.

    tree: its name.
    at_server: true if its root is a server.
    switches: true if switches sum.
    optimizer: true if servers run one.
    """
    if pipeline.wide and not at_server:
        return (
            f"pipeline {WIDE} is one of servers that sum, and the root of tree {tree} is a switch"
        )
    if pipeline.ablated and (switches or not at_server):
        return (
            f"{_list(pipeline.ablated)} can be left out where servers alone sum, and in tree {tree}"
            " switches do; use tree none"
        )
    if not pipeline.steps and not optimizer:
        return (
            f"{OPTIMIZER} can be left out where servers run one, and this job's workers do; let"
            " the optimizer be at servers"
        )
    return ""


def _list(words: Iterable[str]) -> str:
    return " and ".join(words)
