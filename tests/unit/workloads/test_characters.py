# SPDX-License-Identifier: Apache-2.0
"""Tests the workload `characters`: its text, the held-out part, and learning."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specs.jobfile import load
from specs.jobspec import JobSpec
from tests.conftest import ROOT
from workloads import reference
from workloads.characters import (
    ALPHABET,
    BLOCK,
    CONTEXT,
    TEST_SHARE,
    Characters,
    as_classes,
    load_text,
    split,
)

LANES = 256


def short(**fields: object) -> JobSpec:
    """The job that is shipped, smaller."""
    spec = load(ROOT / "jobs" / "characters.yaml").spec
    return spec.model_copy(update={"iterations": 40, "batch": 512, "hidden": [64], **fields})


def test_alphabet_maps_other_characters_to_one() -> None:
    text = "a\n ~\u201c\U0001f600\x00z"
    classes = as_classes(text).tolist()
    again = "".join(ALPHABET[one - 1] if one else "?" for one in classes)
    assert again == "a\n ~???z"


def test_the_text_is_english_and_nearly_all_of_it_is_in_the_alphabet() -> None:
    text = load_text()
    assert len(text) > 300_000
    assert text.count(" the ") > 2_000
    assert np.count_nonzero(as_classes(text) == 0) < len(text) / 100


def test_nothing_that_is_held_out_is_seen_in_training() -> None:
    length = 50 * BLOCK + 100
    training, held_out = split(length, seed=3)
    back = np.arange(-CONTEXT, 1)
    seen = np.unique(training[:, None] + back)
    tested = np.unique(held_out[:, None] + back)
    assert not np.intersect1d(seen, tested).size
    assert seen[0] >= 0
    # All but the first few characters of each block are foretold.
    assert len(training) + len(held_out) >= length * (1 - CONTEXT / BLOCK) - CONTEXT
    assert len(held_out) == pytest.approx(length / TEST_SHARE, rel=0.05)


def test_workers_learn_from_different_places() -> None:
    workload = Characters(short(batch=4000))
    places = [next(workload.batches(rank, 4)).positions for rank in range(4)]
    assert len(np.unique(np.concatenate(places))) == 4000


def test_half_precision_gradients_cost_less_than_a_hundredth_of_the_loss() -> None:
    alphabet = math.log(1 + len(ALPHABET))
    losses = {
        kind: reference.train(short(gradients=kind), 2, LANES).quality.loss
        for kind in ("float32", "float16", "bfloat16")
    }
    assert losses["float32"] < 0.75 * alphabet  # it learns
    for kind in ("float16", "bfloat16"):
        assert losses[kind] != losses["float32"]
        assert losses[kind] == pytest.approx(losses["float32"], rel=0.01)
