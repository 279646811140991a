# SPDX-License-Identifier: Apache-2.0
"""The perceptron that learning workloads share, and the division of their data.

All results depend on the job file and the number of workers alone, with the same bits on every CPU
and any number of threads: float32 throughout, no BLAS, no global random state. A single process can
therefore reproduce a run.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from workloads.backpropagation import Layer, backpropagate, cross_entropy, forward
from workloads.kernels import total

Floats = npt.NDArray[np.float32]
Classes = npt.NDArray[np.int64]
Parameters = dict[str, Floats]

_ROWS = 4096  # examples of a test set at a time, to bound memory


class Data(Protocol):
    """Examples: inputs of a model, and their classes (n,)."""

    @property
    def classes(self) -> Classes: ...

    def __len__(self) -> int: ...

    def select(self, rows: Any) -> Any:
        """Selects examples."""


class Quality(NamedTuple):
    """A model on a test set: accuracy as a share, and mean cross entropy in nats."""

    accuracy: float
    loss: float


class Perceptron(ABC):
    """Fully connected layers with ReLU between them, softmax and cross entropy at the end.

    sizes: of the inputs, each hidden layer, and the classes. Subclasses define ``inputs``.
    """

    learns = True
    learns_inputs = False  # has parameters of ``inputs``
    # The model, parameters, test set and quality of the last evaluation.
    _evaluated: tuple[type[Perceptron], Any, Data, Quality] | None = None

    def __init__(self, sizes: Sequence[int], seed: int) -> None:
        """Draws weights with variance 2 / inputs (He et al., 2015); biases are 0."""
        self._random = np.random.default_rng([seed, 4])
        self.layers = len(sizes) - 1
        self.parameters: Parameters = {}
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes), start=1):
            deviation = np.float32(np.sqrt(2 / inputs))
            weights = self._random.standard_normal((inputs, outputs), dtype=np.float32) * deviation
            self.parameters[f"weights{layer}"] = weights
            self.parameters[f"biases{layer}"] = np.zeros(outputs, np.float32)

    @abstractmethod
    def inputs(self, data: Any) -> Floats:
        """Returns the inputs (n, sizes[0]) of n examples."""

    def learn_inputs(self, data: Any, error: Floats) -> Parameters:
        """Returns the gradients of parameters of ``inputs``; error: the inputs' own gradient."""
        return {}

    def gradients(self, batch: Any) -> tuple[float, Parameters]:
        """Computes the mean cross entropy of a batch and its gradient for every parameter."""
        inputs = self.inputs(batch)
        found = backpropagate(inputs, batch.classes, self._connected, to_inputs=self.learns_inputs)
        gradients: Parameters = {}
        for number, layer in enumerate(found.layers, start=1):
            gradients[f"weights{number}"], gradients[f"biases{number}"] = layer
        if found.inputs is not None:
            gradients |= self.learn_inputs(batch, found.inputs)
        return total(found.losses) / len(batch), {name: gradients[name] for name in self.parameters}

    def evaluate(self, data: Data) -> Quality:
        """Measures the quality on a test set. The replicas of a process mostly have the same
        parameters, so it keeps the last result."""
        given = {name: (one.shape, one.tobytes()) for name, one in self.parameters.items()}
        last = Perceptron._evaluated
        if last is None or last[:2] != (type(self), given) or last[2] is not data:
            last = Perceptron._evaluated = type(self), given, data, self._evaluate(data)
        return last[3]

    def _evaluate(self, data: Data) -> Quality:
        right, lost = 0, 0.0
        for first in range(0, len(data), _ROWS):
            part = data.select(slice(first, first + _ROWS))
            scores = forward(self.inputs(part), self._connected)[-1]
            right += int(np.count_nonzero(scores.argmax(axis=1) == part.classes))
            lost += total(cross_entropy(scores, part.classes)[0])
        return Quality(right / len(data), lost / len(data))

    @property
    def by_layer(self) -> dict[str, tuple[str, ...]]:
        """Names each layer's parameters, in the order of the forward pass."""
        found = {f"layer{n}": (f"weights{n}", f"biases{n}") for n in range(1, self.layers + 1)}
        connected = {key for keys in found.values() for key in keys}
        before = [name for name in self.parameters if name not in connected]
        return {**{name: (name,) for name in before}, **found}

    @property
    def _connected(self) -> list[Layer]:
        given, numbers = self.parameters, range(1, self.layers + 1)
        return [Layer(given[f"weights{n}"], given[f"biases{n}"]) for n in numbers]


def shard_indices(count: int, seed: int, rank: int, world: int) -> npt.NDArray[np.int64]:
    """Returns the indices of worker ``rank``'s shard, one of ``world``; sizes differ by at most 1.
    Workers that joined later, whose ranks are beyond, share the shards of others."""
    return np.random.default_rng([seed, 2]).permutation(count)[rank % world :: world]


def batch_indices(
    count: int, size: int, seed: int, rank: int, first: int = 0
) -> Iterator[npt.NDArray[np.int64]]:
    """Yields endless batches of indices below ``count``, from batch ``first`` on.

    Each pass is shuffled, and batches may span two passes.
    """
    random = np.random.default_rng([seed, 3, rank])
    waiting = np.empty(0, np.int64)
    for number in itertools.count():
        while len(waiting) < size:
            waiting = np.concatenate([waiting, random.permutation(count)])
        chosen, waiting = waiting[:size], waiting[size:]
        if number >= first:
            yield chosen
