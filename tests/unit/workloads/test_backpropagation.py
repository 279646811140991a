# SPDX-License-Identifier: Apache-2.0
"""Tests that gradients computed in C have the bits of those composed with numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.backpropagation import Layer, backpropagate, backpropagate_by_numpy
from workloads.models import Floats

ODD = [np.nan, np.inf, -np.inf, 3e38, 1e-42, -0.0]


def assert_alike(found: Floats, wanted: Floats) -> None:
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype == np.float32
    nothing = np.isnan(wanted)
    assert np.array_equal(np.isnan(found), nothing)
    assert found[~nothing].tobytes() == wanted[~nothing].tobytes()


@settings(deadline=None)  # the first one may compile
@given(
    sizes=st.lists(st.integers(1, 70), min_size=2, max_size=5),
    examples=st.integers(1, 70),
    odd=st.sampled_from([None, *ODD]),
    scale=st.sampled_from([0.01, 1.0, 1e20]),
    to_inputs=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
def test_gradients_have_the_bits_of_numpy(
    sizes: list[int], examples: int, odd: float | None, scale: float, to_inputs: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    layers = [
        Layer(
            random.standard_normal(shape, dtype=np.float32) * np.float32(scale),
            random.standard_normal(shape[1], dtype=np.float32),
        )
        for shape in itertools.pairwise(sizes)
    ]
    inputs = random.standard_normal((examples, sizes[0]), dtype=np.float32)
    if odd is not None:
        inputs[random.integers(examples), random.integers(sizes[0])] = odd
    classes = random.integers(0, sizes[-1], examples)
    found = backpropagate(inputs, classes, layers, to_inputs=to_inputs)
    wanted = backpropagate_by_numpy(inputs, classes, layers, to_inputs=to_inputs)
    assert_alike(found.losses, wanted.losses)
    for one, other in zip(found.layers, wanted.layers, strict=True):
        assert_alike(one.weights, other.weights)
        assert_alike(one.biases, other.biases)
    assert (found.inputs is None) == (wanted.inputs is None) == (not to_inputs)
    if found.inputs is not None and wanted.inputs is not None:
        assert_alike(found.inputs, wanted.inputs)
