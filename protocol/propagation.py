# SPDX-License-Identifier: Apache-2.0
"""The way in which the gradients of a job are sent: order, classes of urgency, slices and servers.

The baseline of P3 (Jayarajan et al., "Priority-based Parameter Propagation for Distributed DNN
Training", SysML 2019) sends whole keys in the order of the backward pass; P3 sends slices, first
those that the next forward pass needs first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from protocol import jobs_pb2
from protocol.assignment.registry import ASSIGNMENTS, BALANCED

FIFO = "fifo"
# The upper half of stream numbers has 16 for each of 8 network priorities (protocol/priorities.py).
MOST_CLASSES = 128
CHUNK = "chunk"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_LONGEST_ORDER = 40
_MOST_CREDIT = (1 << 40) + 1
SLICE = "slice"
RELEASES = (CHUNK, SLICE)


@dataclass(frozen=True, slots=True)
class Propagation:
    """The order and units in which a job's gradients are sent.

    order: name of the chunk scheduler (`hosts.worker.scheduling`).
    classes: of urgency; the streams of a class send before those of all lower ones.
    in_network: switches serve classes by strict priority, not workers alone.
    parts: keys are whole, but those longer than a slice have one equal part for each server.
    assign: name of the rule that assigns slices to servers (`protocol.assignment`).
    release: servers send the sums of a slice chunk by chunk, or when all of them are complete.
    credit: bytes that a worker may have in flight; 0: what windows allow.

    Raises ValueError for values that are not possible.
    """

    order: str = FIFO
    classes: int = 1
    in_network: bool = False
    parts: bool = False
    assign: str = BALANCED
    release: str = CHUNK
    credit: int = 0

    def __post_init__(self) -> None:
        if not (_NAME.fullmatch(self.order) and len(self.order) <= _LONGEST_ORDER):
            raise ValueError(f"order {self.order[:_LONGEST_ORDER]!r} is no name of a scheduler")
        if not 1 <= self.classes <= MOST_CLASSES:
            raise ValueError(f"{self.classes} classes; allowed: 1 to {MOST_CLASSES}")
        if self.assign not in ASSIGNMENTS:
            raise ValueError(f"assignment {self.assign[:40]!r} is none of {', '.join(ASSIGNMENTS)}")
        if self.release not in RELEASES:
            raise ValueError(f"release {self.release[:40]!r} is none of {', '.join(RELEASES)}")
        if not 0 <= self.credit < _MOST_CREDIT:
            raise ValueError(f"a credit of {self.credit} bytes; allowed: 0 to 2^40")

    def __str__(self) -> str:
        parts = [self.order]
        if self.classes > 1:
            parts.append(f"{self.classes} classes")
        if self.parts:
            parts.append("whole keys")
        if self.assign != BALANCED:
            parts.append(self.assign)
        if self.by_slice:
            parts.append("sums released by slice")
        if self.credit:
            parts.append(f"credit {self.credit} B")
        return ", ".join(parts)

    @property
    def by_slice(self) -> bool:
        """True if servers send the sums of a slice together."""
        return self.release == SLICE

    @staticmethod
    def from_message(message: jobs_pb2.Propagation) -> Propagation:
        """Raises ValueError."""
        return Propagation(
            message.order or FIFO,
            message.classes or 1,
            message.in_network,
            message.parts,
            message.assign or BALANCED,
            message.release or CHUNK,
            message.credit,
        )

    def to_message(self) -> jobs_pb2.Propagation:
        return jobs_pb2.Propagation(
            order=self.order,
            classes=self.classes,
            in_network=self.in_network,
            parts=self.parts,
            assign=self.assign,
            release=self.release,
            credit=self.credit,
        )


USUAL = Propagation()


def refusal(propagation: Propagation, tree: str, *, at_server: bool) -> str:
    """Returns the reason why a job cannot have it; empty if it can.

    tree: its name. at_server: true if its root is a server.
    """
    if propagation.by_slice and not at_server:
        return (
            f"release {SLICE} is about servers that send sums, and the root of tree {tree} is a"
            f" switch, which sends each chunk when it is complete; use release {CHUNK}"
        )
    return ""
