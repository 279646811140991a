# SPDX-License-Identifier: Apache-2.0
"""The workload ``characters``: predicts the next character of English text.

The text is Python's help topics (``pydoc_data.topics`` of the standard library), half a million
characters. It differs by Python version, so compare its SHA-256 before comparing runs.

The model is that of Bengio et al. (A Neural Probabilistic Language Model, 2003), by character:
learned embeddings of the preceding characters, concatenated, as input of fully connected layers.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from specs.jobspec import JobSpec
from workloads.models import Classes, Floats, Parameters, Perceptron, batch_indices, shard_indices

CONTEXT = 16
EMBEDDED = 16
# Class 0 stands for all others. Fixed for every text, so that the size of the model is fixed, too.
ALPHABET = "\n" + "".join(chr(code) for code in range(32, 127))
CLASSES = 1 + len(ALPHABET)
# One in ten blocks of the text is held out, as the topics at the two ends of the alphabet differ.
BLOCK = 4096
TEST_SHARE = 10
TEST_POSITIONS = 4096

Text = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]


def load_text() -> str:
    """Loads all topics in the order of their names.

    Raises RuntimeError if Python was installed without them.
    """
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise RuntimeError(
            "this Python has no pydoc_data.topics, which the workload `characters` learns from;"
            " install Python's whole standard library (Debian: libpython3-stdlib)"
        ) from error
    return "\n".join(topics[name] for name in sorted(topics))


def as_classes(text: str) -> Text:
    """Returns (n,) classes of the characters."""
    known: Text = np.zeros(1 << 16, np.uint8)
    known[[ord(character) for character in ALPHABET]] = np.arange(1, CLASSES)
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    classes: Text = known[np.where(codes < len(known), codes, 0)]
    return classes


def split(length: int, seed: int) -> tuple[Positions, Positions]:
    """Splits the positions of a text into training and test sets, in blocks drawn with the seed.

    Contexts of positions do not reach into other blocks.
    """
    starts = np.arange(0, length - CONTEXT, BLOCK)
    drawn = np.random.default_rng([seed, 1]).permutation(len(starts))
    held_out = np.zeros(len(starts), bool)
    held_out[drawn[: max(1, len(starts) // TEST_SHARE)]] = True
    positions = np.arange(length)
    inside = positions % BLOCK >= CONTEXT
    test = held_out[np.minimum(positions // BLOCK, len(starts) - 1)]
    return positions[inside & ~test], positions[inside & test]


@dataclass(frozen=True)
class TextPositions:
    """Positions (n,) in a text."""

    text: Text
    positions: Positions

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def classes(self) -> Classes:
        """(n,) classes at the positions."""
        return self.text[self.positions].astype(np.int64)

    @cached_property
    def before(self) -> Classes:
        """(n, CONTEXT) classes before the positions."""
        back = np.arange(-CONTEXT, 0)
        before: Classes = self.text[self.positions[:, None] + back].astype(np.int64)
        return before

    def select(self, rows: Any) -> TextPositions:
        """Implements Data."""
        return TextPositions(self.text, self.positions[rows])


@lru_cache(maxsize=2)
def _loaded(seed: int) -> tuple[Positions, TextPositions, str]:
    """Returns training positions, test set and the SHA-256 of the text, shared by the workers of a
    process."""
    text = load_text()
    training, held_out = split(len(text), seed)
    # An even sample, large enough to compare models.
    chosen = np.linspace(0, len(held_out) - 1, min(TEST_POSITIONS, len(held_out)))
    test = TextPositions(as_classes(text), held_out[chosen.astype(np.int64)])
    return training, test, hashlib.sha256(text.encode()).hexdigest()


class CharacterModel(Perceptron):
    """Predicts the next character from the CONTEXT ones before it."""

    learns_inputs = True

    def __init__(self, hidden: list[int], seed: int) -> None:
        super().__init__([CONTEXT * EMBEDDED, *hidden, CLASSES], seed)
        shape = CLASSES, EMBEDDED
        embeddings = self._random.standard_normal(shape, dtype=np.float32)
        self.parameters = {"embeddings": embeddings, **self.parameters}

    def inputs(self, data: TextPositions) -> Floats:
        """Implements Perceptron."""
        inputs: Floats = self.parameters["embeddings"][data.before].reshape(len(data), -1)
        return inputs

    def learn_inputs(self, data: TextPositions, error: Floats) -> Parameters:
        """Implements Perceptron."""
        gradient = np.zeros((CLASSES, EMBEDDED), np.float32)
        np.add.at(gradient, data.before.reshape(-1), error.reshape(-1, EMBEDDED))
        return {"embeddings": gradient}


class Characters:
    """Implements ``workloads.workloads.Workload``."""

    unit = "character"
    data = "Python's pydoc_data.topics"

    def __init__(self, job: JobSpec) -> None:
        self._training, self.test, self.sha256 = _loaded(job.seed)
        self._text = self.test.text
        self.examples = len(self._training)
        self._job = job

    @staticmethod
    def model(job: JobSpec) -> CharacterModel:
        """Implements Workload."""
        return CharacterModel(job.hidden, job.seed)

    def batches(self, rank: int, world: int, first: int = 0) -> Iterator[TextPositions]:
        """Implements Workload."""
        job = self._job
        part = self._training[shard_indices(self.examples, job.seed, rank, world)]
        for rows in batch_indices(len(part), job.batch // world, job.seed, rank, first):
            yield TextPositions(self._text, part[rows])
