# SPDX-License-Identifier: Apache-2.0
"""Tests training kernels: defined to the last bit, and accurate to float32."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.paths import ROOT
from workloads import kernels


def one_by_one(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The definition: single rounded products, added in ascending order of k."""
    out = np.zeros((len(a), b.shape[1]), np.float32)
    for i in range(len(a)):
        for j in range(b.shape[1]):
            total = np.float32(0)
            for k in range(len(b)):
                total = np.float32(total + np.float32(a[i, k] * b[k, j]))
            out[i, j] = total
    return out


@settings(deadline=None)  # the first one may compile
@given(st.integers(1, 19), st.integers(1, 40), st.integers(1, 37), st.integers(0, 2**32 - 1))
def test_products_match_definition(rows, inner, columns, seed):
    random = np.random.default_rng(seed)
    scale = 2.0 ** random.integers(-30, 30, (rows, inner))
    a = (random.standard_normal((rows, inner)) * scale).astype(np.float32)
    b = random.standard_normal((columns, inner)).astype(np.float32).T  # not contiguous
    expected = one_by_one(a, b).tobytes()
    assert kernels.product(a, b).tobytes() == expected
    assert kernels.product(np.asfortranarray(a), b).tobytes() == expected
    assert kernels.product_by_numpy(a, b).tobytes() == expected


@pytest.mark.parametrize(
    ("mine", "exact", "low", "high"), [("exp", np.exp, -87, 80), ("ln", np.log, 1e-30, 1e30)]
)
def test_functions_round_like_exact_ones(mine, exact, low, high):
    random = np.random.default_rng(1)
    x = random.uniform(low, high, 50_000)
    if mine == "ln":
        x = np.exp(random.uniform(np.log(low), np.log(high), 50_000))
    x = x.astype(np.float32)
    found, wanted = getattr(kernels, mine)(x), exact(x.astype(np.longdouble))
    ulp = np.spacing(np.abs(wanted).astype(np.float32)).astype(np.longdouble)
    assert (np.abs(found.astype(np.longdouble) - wanted) <= 0.501 * ulp).all()
    assert kernels.exp(np.float32([0.0, -1000.0])).tolist() == [1.0, 0.0]
    assert kernels.ln(np.float32([1.0])).tolist() == [0.0]


@pytest.mark.parametrize("mine", ["exp", "ln"])
def test_functions_have_the_bits_of_numpy(mine):
    random = np.random.default_rng(3)
    x = np.float32(random.uniform(-300, 80, 100_003))
    x[:8] = [0, -0.0, np.nan, -np.inf, -200, 80, 88.8, -87.4]
    if mine == "ln":
        bits = random.integers(1, 0x7F800000, 100_003, np.uint32)  # all positive numbers
        x = bits.view(np.float32)
        x[:6] = [1, np.nan, np.inf, 1e-45, 0.70710677, 0.7071068]
    with np.errstate(invalid="ignore"):  # infinities
        found, wanted = getattr(kernels, mine)(x), getattr(kernels, f"{mine}_by_numpy")(x)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    finite = ~np.isnan(wanted)
    assert found[finite].tobytes() == wanted[finite].tobytes()


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_row_sums_have_the_bits_of_numpy(rows, columns, seed):
    values = np.random.default_rng(seed).standard_normal((columns, rows)).astype(np.float32).T
    assert kernels.row_sums(values).tobytes() == kernels.row_sums_by_numpy(values).tobytes()


def test_sums_have_one_order():
    random = np.random.default_rng(2)
    values = random.standard_normal((300, 11)).astype(np.float32)
    columns = np.zeros(11, np.float32)
    for row in values:
        columns += row
    assert kernels.column_sums(values).tobytes() == columns.tobytes()
    rows = values[:, 0].copy()
    for column in values.T[1:]:
        rows += column
    assert kernels.row_sums(values)[:, 0].tobytes() == rows.tobytes()
    exact = sum(Fraction(float(x)) for x in values.ravel())
    assert kernels.total(values) == float(exact)


def test_a_model_learns_the_same_on_any_machine():
    """As far as one machine can be made to look like others: kernels of BLAS, threads, no C."""
    program = (
        "import hashlib, numpy as np\n"
        "from specs.jobfile import load\n"
        "from workloads.trainer import Replica, digest\n"
        "replica = Replica(load('jobs/digits.yaml').spec, 0, 4)\n"
        "for _ in range(3):\n"
        "    loss, gradients = replica.gradients()\n"
        "    replica.apply(gradients)\n"
        "print(digest(replica.parameters), loss)\n"
    )
    found = set()
    for more in (
        {"OPENBLAS_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Prescott", "PYTHONHASHSEED": "1"},
        {"OPENBLAS_NUM_THREADS": "4", "OPENBLAS_CORETYPE": "Haswell", "PYTHONHASHSEED": "2"},
        {"RACKHUB_NUMPY": "1", "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD"},
    ):
        run = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": str(ROOT), **more},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        found.add(run.stdout)
    assert len(found) == 1
