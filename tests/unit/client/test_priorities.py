# SPDX-License-Identifier: Apache-2.0
"""Tests the priority of pushes: what is refused, and that a key keeps its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hosts.client.exchange import Exchange
from hosts.data.tensors import Tensors
from hosts.errors import PriorityError

KEYS = {"first": 4, "last": 4}


def exchange(classes: int) -> Exchange:
    made = Exchange(Tensors(KEYS, 4), optimized=False)
    made.classes = classes
    return made


def push(to: Exchange, *names: str, priority: Any = None) -> None:
    values = {name: np.ones(4, np.float32) for name in names}
    to.call(values, False, None, lambda _: None, priority)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("wrong", [8, -1, True, 3.5, "3", float("nan"), np.array([1])])
def test_what_is_no_class_of_the_job_is_refused(wrong: Any) -> None:
    with pytest.raises(PriorityError, match="allowed: 0 to 7, which is sent first"):
        push(exchange(8), "first", priority=wrong)


def test_a_job_without_classes_has_no_priorities() -> None:
    with pytest.raises(PriorityError, match="the job has one class of urgency"):
        push(exchange(1), "first", priority=1)


@pytest.mark.parametrize(("before", "after"), [(3, 2), (3, None), (None, 0)])
def test_a_key_keeps_its_priority(before: int | None, after: int | None) -> None:
    job = exchange(8)
    push(job, "first", priority=before)
    with pytest.raises(PriorityError, match="'first' is pushed with priority"):
        push(job, "last", "first", priority=after)
    push(job, "last", priority=7)  # what was refused is not kept
    push(job, "first", priority=np.int64(before) if before is not None else None)
