# SPDX-License-Identifier: Apache-2.0
"""Tests codecs: the contract of those registered, and that one file makes a new one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codecs.codec import Codec
from protocol.codecs.fixed32 import Fixed32
from protocol.codecs.registry import CODECS, codec_named
from protocol.header import Flag
from protocol.payloads import chunk_exponents
from protocol.plan import PlanError, WorkerPlan
from tests.impaired_links import Impairments
from tests.unit.worker.simulated_job import Job

pytestmark = pytest.mark.unit

LANES = 6
LOSSES = Impairments(loss=0.05, duplicate=0.05, jitter=0.002)


class Digits12(Fixed32):
    """Sums of 12 binary digits: coarser than the usual codec, and native like that one."""

    name = "digits12"
    sum_digits = 12


class TowardsZero(Codec):
    """Cuts digits off instead of rounding: hosts have no native code for it."""

    name = "towards-zero"

    def encode(self, values, exponents, world, out=None, scratch=None):
        own, flags = chunk_exponents(values)
        flags[own > np.asarray(exponents)] |= np.uint8(Flag.OVERFLOW)
        kept = np.where(flags[:, None] == 0, values, 0).astype(np.float64)
        words = np.empty(values.shape, self.lane) if out is None else out
        words[:] = np.trunc(np.ldexp(kept, self.scale(exponents, world)[:, None]))
        return words, own, flags

    def decode(self, words, exponents, world, out=None):
        floats = np.empty(words.shape, np.float32) if out is None else out
        with np.errstate(over="ignore"):
            floats[:] = np.ldexp(words.astype(np.float64), -self.scale(exponents, world)[:, None])
        return floats


OWN = {codec.name: codec for codec in (Digits12(), TowardsZero())}
EVERY = {**CODECS, **OWN}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for name, codec in OWN.items():
        assert name not in CODECS, "a test's own would hide the registered one"
        monkeypatch.setitem(CODECS, name, codec)


@pytest.mark.parametrize("name", EVERY)
@given(
    seed=st.integers(0, 2**32), world=st.integers(1, 70), exponent=st.integers(-126, 127),
    below=st.integers(0, 40),
)  # fmt: skip
@settings(max_examples=40, deadline=None, derandomize=True)
def test_codec_keeps_the_contract(name, seed, world, exponent, below):
    codec = EVERY[name]
    rng = np.random.default_rng(seed)
    largest = np.ldexp(1.0, exponent - below)
    values = (rng.uniform(-largest, largest, (world, 1, LANES))).astype(np.float32)
    exponents = np.array([exponent])
    total, magnitudes = np.zeros((1, LANES), np.int64), np.zeros((1, LANES), np.int64)
    for mine in values:
        words, own, flags = codec.encode(mine, exponents, world)
        assert words.dtype == codec.lane
        assert words.tobytes() == codec.encode(mine, exponents, world)[0].tobytes()
        assert (own == chunk_exponents(mine)[0]).all()
        assert not flags.any()
        total += words
        magnitudes += np.abs(words.astype(np.int64))
    # No order of adding can leave the lane, nor the digits that the codec claims.
    assert (magnitudes <= 1 << codec.sum_digits).all()
    assert codec.sum_digits < 8 * codec.lane.itemsize
    sums = codec.decode(total.astype(codec.lane), exponents, world).astype(np.float64)
    exact = values.astype(np.float64).sum(axis=0)
    step = np.ldexp(1.0, -int(codec.scale(exponents, world)[0]))
    with np.errstate(invalid="ignore"):
        off = np.abs(sums - exact) > world * step + np.abs(exact) * 2.0**-24
    assert not (off & np.isfinite(sums)).any()


@pytest.mark.parametrize("name", EVERY)
def test_values_that_do_not_fit_are_flagged(name):
    codec = EVERY[name]
    values = np.array([[1.5, 0], [0.5, 0], [np.nan, 0], [np.inf, 0]], np.float32)
    words, _, flags = codec.encode(values, np.zeros(4, np.int16), 2)
    assert flags.tolist() == [Flag.OVERFLOW, 0, Flag.NONFINITE, Flag.NONFINITE]
    assert (words != 0).any(axis=1).tolist() == [False, True, False, False]


@pytest.mark.parametrize("name", EVERY)
def test_workers_get_the_sums_of_their_codec(name):
    job = Job(servers=2, chunks=12, lanes=LANES, codec=EVERY[name], impairments=LOSSES, seed=5)
    for scale in (1.0, 2.0, 2.0**-9):  # in the last one little is left of the digits
        job.round(job.random_values(0, scale))
    coarse = [worker.statistics.coarse for worker in job.workers]
    # Of 12 digits less those of the world and of headroom less than 8 are left.
    assert coarse == [12 if name == "digits12" else 0] * job.world


def test_plan_names_the_codec():
    [plan, *_] = Job(codec=OWN["digits12"]).worker_plans(4, 1)
    assert WorkerPlan.from_message(plan.to_message()) == plan
    message = plan.to_message()
    message.codec = ""
    assert WorkerPlan.from_message(message) == replace(plan, codec=codec_named(""))
    message.codec = "float8"
    with pytest.raises(PlanError, match="codec 'float8' is none of fixed32"):
        WorkerPlan.from_message(message)
