# SPDX-License-Identifier: Apache-2.0
"""Computes the gradients of a perceptron, with the same bits on every machine (``kernels``).

Layers are fully connected, with ReLU between them, softmax and cross entropy at the end.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workloads.kernels import column_sums, exp, library, ln, product, row_sums

Floats = npt.NDArray[np.float32]
Classes = npt.NDArray[np.int64]


class Layer(NamedTuple):
    """Weights (inputs, outputs) and biases (outputs,) of a layer, or their gradients."""

    weights: Floats
    biases: Floats


class Backpropagated(NamedTuple):
    """Losses and gradients of a batch of n examples.

    losses: (n,) cross entropy of each example in nats.
    layers: gradients of their mean.
    inputs: its gradient by the inputs (n, inputs), if asked for.
    """

    losses: Floats
    layers: list[Layer]
    inputs: Floats | None


def forward(inputs: Floats, layers: Sequence[Layer]) -> list[Floats]:
    """Returns each layer's inputs (n, inputs), and the scores (n, classes)."""
    values = [inputs]
    for number, (weights, biases) in enumerate(layers, start=1):
        value = product(values[-1], weights)
        value += biases
        values.append(np.maximum(value, 0) if number < len(layers) else value)
    return values


def cross_entropy(scores: Floats, classes: Classes) -> tuple[Floats, Floats]:
    """Computes the cross entropy of each row, and the softmax of its scores."""
    scores = scores - scores.max(axis=1, keepdims=True)
    shares = exp(scores)
    sums = row_sums(shares)
    losses: Floats = ln(sums[:, 0]) - scores[np.arange(len(scores)), classes]
    shares /= sums
    return losses, shares


def backpropagate(
    inputs: Floats, classes: Classes, layers: Sequence[Layer], *, to_inputs: bool = False
) -> Backpropagated:
    """Computes losses and gradients of n examples.

    inputs: (n, inputs). classes: (n,) the right class of each. to_inputs: also the gradient by the
    inputs.
    """
    lib = library()
    if lib is None:
        return backpropagate_by_numpy(inputs, classes, layers, to_inputs=to_inputs)
    count, n = len(layers), len(classes)
    inputs = np.ascontiguousarray(inputs, np.float32)
    classes = np.ascontiguousarray(classes, np.int64)
    given = [Layer(*(np.ascontiguousarray(one, np.float32) for one in layer)) for layer in layers]
    sizes = (ctypes.c_size_t * (count + 1))(
        inputs.shape[1], *(len(layer.biases) for layer in given)
    )
    pointers = ctypes.c_void_p * count
    losses = np.empty(n, np.float32)
    found = np.empty(sum(one.size for layer in given for one in layer), np.float32)
    back = np.empty_like(inputs) if to_inputs else None
    scratch = np.empty(lib.backpropagation_scratch(count, sizes, n), np.float32)
    lib.backpropagate(
        *(count, sizes, n, inputs.ctypes.data, classes.ctypes.data),
        pointers(*(layer.weights.ctypes.data for layer in given)),
        pointers(*(layer.biases.ctypes.data for layer in given)),
        *(losses.ctypes.data, found.ctypes.data),
        None if back is None else back.ctypes.data,
        scratch.ctypes.data,
    )
    gradients, end = [], 0
    for layer in given:
        begin, middle = end, end + layer.weights.size
        end = middle + layer.biases.size
        gradients.append(Layer(found[begin:middle].reshape(layer.weights.shape), found[middle:end]))
    return Backpropagated(losses, gradients, back)


def backpropagate_by_numpy(
    inputs: Floats, classes: Classes, layers: Sequence[Layer], *, to_inputs: bool = False
) -> Backpropagated:
    """Computes `backpropagate` without C of its own: slower, and the oracle of its tests."""
    values = forward(inputs, layers)
    losses, shares = cross_entropy(values[-1], classes)
    shares[np.arange(len(classes)), classes] -= 1
    error: Floats = shares / np.float32(len(classes))
    gradients: list[Layer] = []
    for number in range(len(layers) - 1, -1, -1):
        given, weights = values[number], layers[number].weights
        gradients.append(Layer(product(given.T, error), column_sums(error)))
        if number or to_inputs:
            back = product(error, weights.T)
            error = back * (given > 0) if number else back
    return Backpropagated(losses, gradients[::-1], error if to_inputs else None)
