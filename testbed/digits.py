# SPDX-License-Identifier: Apache-2.0
"""The workload ``digits``: scikit-learn's handwritten digits, and a multi-layer perceptron.

Everything here is a function of the job file and of the number of workers alone, and gives the
same bits in every process of a machine: float32 throughout, one BLAS thread, no global random
state. So a single process can redo what the workers of a run did.

Data: 1,797 images of 8 x 8 pixels with values 0..16 in ten classes, the test set of the UCI data
set "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998).
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from testbed.jobfile import JobSpec

Floats = npt.NDArray[np.float32]
Classes = npt.NDArray[np.int64]
Parameters = dict[str, Floats]

CLASSES = 10
PIXELS = 64
# One image in five of every class is held out.
TEST_SHARE = 5


@dataclass(frozen=True)
class Data:
    """Images (n, 64) float32 in 0..1, classes (n,) int64."""

    images: Floats
    classes: Classes

    def __len__(self) -> int:
        return len(self.classes)


def load_digits() -> Data:
    """All 1,797 digits, from scikit-learn's files (importing it takes a second of CPU)."""
    found = importlib.util.find_spec("sklearn")
    for folder in (found.submodule_search_locations or []) if found else []:
        table = Path(folder, "datasets", "data", "digits.csv.gz")
        if table.exists():
            values = np.loadtxt(table, delimiter=",", dtype=np.float32)
            return Data(values[:, :-1] / np.float32(16), values[:, -1].astype(np.int64))
    from sklearn.datasets import load_digits as load

    images, classes = load(return_X_y=True)
    return Data((images / 16).astype(np.float32), classes.astype(np.int64))


def split(data: Data, seed: int) -> tuple[Data, Data]:
    """Training and test set: a fifth of each class, drawn with the seed, is held out."""
    random = np.random.default_rng([seed, 1])
    held_out = np.zeros(len(data), bool)
    for which in range(CLASSES):
        members = random.permutation(np.flatnonzero(data.classes == which))
        held_out[members[: len(members) // TEST_SHARE]] = True
    return (
        Data(data.images[~held_out], data.classes[~held_out]),
        Data(data.images[held_out], data.classes[held_out]),
    )


def shard(training: Data, seed: int, rank: int, world: int) -> Data:
    """The part of the training set that worker ``rank`` has; sizes differ by one at most."""
    order = np.random.default_rng([seed, 2]).permutation(len(training))[rank::world]
    return Data(training.images[order], training.classes[order])


def batches(part: Data, size: int, seed: int, rank: int, first: int = 0) -> Iterator[Data]:
    """Endless batches of a shard, from number ``first`` on: shuffled anew for each pass, a pass's
    end joined to the next."""
    random = np.random.default_rng([seed, 3, rank])
    waiting = np.empty(0, np.int64)
    for number in itertools.count():
        while len(waiting) < size:
            waiting = np.concatenate([waiting, random.permutation(len(part))])
        chosen, waiting = waiting[:size], waiting[size:]
        if number >= first:
            yield Data(part.images[chosen], part.classes[chosen])


class Perceptron:
    """Fully connected layers with ReLU between them, softmax and cross entropy at the end."""

    def __init__(self, hidden: list[int], seed: int) -> None:
        """He's initialisation (He et al., 2015): normal with variance 2 / inputs, biases zero."""
        random = np.random.default_rng([seed, 4])
        sizes = [PIXELS, *hidden, CLASSES]
        self.layers = len(sizes) - 1
        self.parameters: Parameters = {}
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes), start=1):
            deviation = np.float32(np.sqrt(2 / inputs))
            weights = random.standard_normal((inputs, outputs), dtype=np.float32) * deviation
            self.parameters[f"weights{layer}"] = weights
            self.parameters[f"biases{layer}"] = np.zeros(outputs, np.float32)

    def _forward(self, images: Floats) -> list[Floats]:
        """Each layer's input, and the last one's output."""
        values = [images]
        for layer in range(1, self.layers + 1):
            value = values[-1] @ self.parameters[f"weights{layer}"]
            value += self.parameters[f"biases{layer}"]
            values.append(np.maximum(value, 0) if layer < self.layers else value)
        return values

    def gradients(self, batch: Data) -> tuple[float, Parameters]:
        """Mean cross entropy of a batch, and its gradient for every parameter."""
        values = self._forward(batch.images)
        scores = values[-1] - values[-1].max(axis=1, keepdims=True)
        shares = np.exp(scores)
        sums = shares.sum(axis=1, keepdims=True)
        rows = np.arange(len(batch))
        loss = float((np.log(sums[:, 0]) - scores[rows, batch.classes]).mean())
        shares /= sums
        shares[rows, batch.classes] -= 1
        error: Floats = shares / np.float32(len(batch))
        gradients: Parameters = {}
        for layer in range(self.layers, 0, -1):
            gradients[f"weights{layer}"] = values[layer - 1].T @ error
            gradients[f"biases{layer}"] = error.sum(axis=0)
            if layer > 1:
                error = (error @ self.parameters[f"weights{layer}"].T) * (values[layer - 1] > 0)
        return loss, {name: gradients[name] for name in self.parameters}

    def accuracy(self, data: Data) -> float:
        """Share of the images that are put into their class."""
        scores = self._forward(data.images)[-1]
        return float((scores.argmax(axis=1) == data.classes).mean())


def shapes(job: JobSpec) -> dict[str, int]:
    """Elements of each parameter, in order: what the job's gradients are made of."""
    return {
        name: values.size for name, values in Perceptron(job.hidden, job.seed).parameters.items()
    }


def passes(job: JobSpec) -> float:
    """How often the run goes through the training set."""
    training, _ = split(load_digits(), job.seed)
    return job.iterations * job.batch / len(training)
