# SPDX-License-Identifier: Apache-2.0
"""The workload ``digits``: classifies scikit-learn's handwritten digits with a perceptron.

Data: 1,797 images of 8 x 8 pixels with values 0..16 in ten classes, the test set of the UCI data
set "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998).
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from specs.jobspec import JobSpec
from workloads.models import Classes, Floats, Perceptron, batch_indices, shard_indices

CLASSES = 10
PIXELS = 64
# One image in five of every class is held out.
TEST_SHARE = 5


@dataclass(frozen=True)
class Images:
    """Images (n, 64) float32 in 0..1, classes (n,) int64."""

    images: Floats
    classes: Classes

    def __len__(self) -> int:
        return len(self.classes)

    def select(self, rows: Any) -> Images:
        """Implements Data."""
        return Images(self.images[rows], self.classes[rows])


def load_digits() -> Images:
    """Loads all 1,797 digits from scikit-learn's files (importing it takes a second of CPU)."""
    found = importlib.util.find_spec("sklearn")
    for folder in (found.submodule_search_locations or []) if found else []:
        table = Path(folder, "datasets", "data", "digits.csv.gz")
        if table.exists():
            values = np.loadtxt(table, delimiter=",", dtype=np.float32)
            return Images(values[:, :-1] / np.float32(16), values[:, -1].astype(np.int64))
    from sklearn.datasets import load_digits as load

    images, classes = load(return_X_y=True)
    return Images((images / 16).astype(np.float32), classes.astype(np.int64))


def split(data: Images, seed: int) -> tuple[Images, Images]:
    """Splits training and test sets: a fifth of each class, drawn with the seed, is held out."""
    random = np.random.default_rng([seed, 1])
    held_out = np.zeros(len(data), bool)
    for which in range(CLASSES):
        members = random.permutation(np.flatnonzero(data.classes == which))
        held_out[members[: len(members) // TEST_SHARE]] = True
    return data.select(~held_out), data.select(held_out)


@lru_cache(maxsize=2)
def _loaded(seed: int) -> tuple[Images, Images, str]:
    """Returns training set, test set and the SHA-256 of all digits, shared by the workers of a
    process."""
    everything = load_digits()
    content = everything.images.tobytes() + everything.classes.astype("<i8").tobytes()
    return *split(everything, seed), hashlib.sha256(content).hexdigest()


class DigitClassifier(Perceptron):
    """Classifies digits by their pixels."""

    def __init__(self, hidden: list[int], seed: int) -> None:
        super().__init__([PIXELS, *hidden, CLASSES], seed)

    def inputs(self, data: Images) -> Floats:
        """Implements Perceptron."""
        return data.images


class Digits:
    """Implements ``workloads.workloads.Workload``."""

    unit = "image"
    data = "scikit-learn's digits"

    def __init__(self, job: JobSpec) -> None:
        self._training, self.test, self.sha256 = _loaded(job.seed)
        self.examples = len(self._training)
        self._job = job

    @staticmethod
    def model(job: JobSpec) -> DigitClassifier:
        """Implements Workload."""
        return DigitClassifier(job.hidden, job.seed)

    def batches(self, rank: int, world: int, first: int = 0) -> Iterator[Images]:
        """Implements Workload."""
        job = self._job
        part = self._training.select(shard_indices(self.examples, job.seed, rank, world))
        for rows in batch_indices(len(part), job.batch // world, job.seed, rank, first):
            yield part.select(rows)
