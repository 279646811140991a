# SPDX-License-Identifier: Apache-2.0
"""Tests the reference's own check against quantisation errors that workers would share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from protocol.codecs.fixed32 import Fixed32
from protocol.codecs.registry import USUAL
from protocol.exponents import Exponents
from protocol.reference import reference_round
from specs.jobfile import parse
from workloads import reference
from workloads.exact import ExactSums, InexactSumError

WORLD, CHUNKS, LANES = 5, 12, 64


def rounds(seed: int = 1) -> list[np.ndarray]:
    """Chunks of all sizes, some zero, growing out of their scale, or not finite for a while."""
    draw = np.random.default_rng(seed)
    sizes = np.exp2(draw.integers(-140, 100, (1, CHUNKS, 1)).astype(np.float64))
    made = []
    for turn in range(4):
        values = (draw.standard_normal((WORLD, CHUNKS, LANES)) * sizes).astype(np.float32)
        values[:, 0] = 0 if turn != 2 else values[:, 0]
        if turn == 1:
            values[2, 1, 7] = np.nan
            values[0, 2, 3] = -np.inf
            values[1:3, 3, 4] = np.float32(3e38)
            values[4, 4] *= np.float32(1e6)
        made.append(values)
    return made


def checked(policy: Exponents) -> ExactSums:
    exact = ExactSums(CHUNKS)
    for values in rounds():
        exact.check(values, reference_round(values, np.arange(CHUNKS), policy).sums)
    return exact


def test_documented_sums_pass_with_error_report() -> None:
    exact = checked(Exponents(CHUNKS, WORLD))
    assert 0.3 < exact.worst <= 1.0


def all_alike(world: int, value: float, turns: int) -> ExactSums:
    """Rounds of one chunk in which every lane of every worker has the same value."""
    exact, policy = ExactSums(1), Exponents(1, world)
    values = np.full((world, 1, LANES), value, np.float32)
    for _ in range(turns):
        exact.check(values, reference_round(values, np.arange(1), policy).sums)
    return exact


@pytest.mark.parametrize("world", [1, 8, 33])
@pytest.mark.parametrize("value", [1e38, -1e38, 3e38, 1e-45])
def test_the_ends_of_float32_are_no_errors(world: int, value: float) -> None:
    """Sums of integers that float32 does not reach are infinite; the finest steps are coarser."""
    all_alike(world, value, 3)


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_an_infinity_of_the_wrong_sign_or_place_is_an_error(wrong: float) -> None:
    values = np.full((8, 1, LANES), -1e38, np.float32)
    sums = reference_round(values, np.arange(1), Exponents(1, 8)).sums
    assert (sums == -np.inf).all()
    if wrong == -np.inf:
        values /= 100
    sums[0, 5] = wrong
    with pytest.raises(InexactSumError, match="lane"):
        ExactSums(1).check(values, sums)


def job_sums() -> None:
    text = json.dumps({"name": "x", "iterations": 3, "hidden": [16], "batch": 64})
    reference.train(parse(text).spec, 4, 256)


def truncate(values: Any, given: Any, world: int) -> Any:
    words, own, flags = USUAL.encode(values, given, world)
    digits = USUAL.scale(given, world)
    wide = np.trunc(values.astype(np.float64) * np.ldexp(1.0, digits)[:, None])
    return np.where((flags == 0)[:, None], wide, 0).astype(words.dtype), own, flags


def half_scale(words: Any, given: Any, world: int) -> Any:
    return USUAL.decode(words, np.asarray(given) - 1, world)


def clip(values: Any, given: Any, world: int) -> Any:
    words, own, flags = USUAL.encode(values, given, world)
    return np.minimum(words, 1 << 20).astype(words.dtype), own, flags


@pytest.mark.parametrize(
    ("name", "wrong"), [("encode", truncate), ("decode", half_scale), ("encode", clip)]
)
def test_an_error_in_quantisation_fails_the_reference(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., Any]
) -> None:
    job_sums()
    right = getattr(Fixed32, name)
    calls: list[str] = []

    def instead(_codec: Fixed32, *arguments: Any) -> Any:
        calls.append(name)
        monkeypatch.setattr(Fixed32, name, right)  # what is wrong is made from what is right
        try:
            return wrong(*arguments)
        finally:
            monkeypatch.setattr(Fixed32, name, instead)

    monkeypatch.setattr(Fixed32, name, instead)
    with pytest.raises(InexactSumError, match=r"chunk \d+, lane \d+: the sum is"):
        job_sums()
    assert calls


def test_a_scale_that_is_too_coarse_does_not_widen_its_own_bound() -> None:
    """As if every chunk took 16 binary digits of headroom: small values would be rounded away."""
    with pytest.raises(InexactSumError, match="round"):
        checked(Exponents(CHUNKS, WORLD, 16))


def test_one_lane_wrong_in_a_direct_sum_is_found() -> None:
    exact = ExactSums(CHUNKS)
    policy = Exponents(CHUNKS, WORLD)
    first, second = rounds()[:2]
    exact.check(first, reference_round(first, np.arange(CHUNKS), policy).sums)
    result = reference_round(second, np.arange(CHUNKS), policy)
    assert result.flags[4]
    sums = result.sums.copy()
    sums[4, 9] *= np.float32(1.001)
    with pytest.raises(InexactSumError, match="round 1, chunk 4, lane 9"):
        exact.check(second, sums)
    sums = result.sums.copy()
    sums[1, 7] = 0  # a NaN that went missing
    with pytest.raises(InexactSumError, match="chunk 1, lane 7"):
        exact.check(second, sums)
