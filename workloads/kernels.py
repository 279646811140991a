# SPDX-License-Identifier: Apache-2.0
"""Numerical kernels with the same bits on every CPU and any number of threads.

The BLAS behind numpy's matrix products adds in an order that depends on the CPU and the number of
threads, and numpy's exp and log differ between CPUs. These kernels consist of single additions,
multiplications and divisions in a fixed order, which IEEE 754 defines to the last bit.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from switch.compiler import CompilerError, Functions, load_library

log = logging.getLogger("kernels")

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

# Set to 1, numpy multiplies.
VARIABLE = "RACKHUB_NUMPY"
_FOLDER = Path(__file__).parent / "native"
# ln 2 in two parts; products of the first with integers below 2^21 are exact.
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_EXP_TERMS = [1 / math.factorial(n) for n in range(13, -1, -1)]
_LOG_TERMS = [1 / n for n in range(21, 0, -2)]
_HALF_ROOT = math.sqrt(0.5)


def product(a: Floats, b: Floats) -> Floats:
    """Multiplies a (n, k) by b (k, m); each element is a sum over k in ascending order."""
    lib = library()
    if lib is None:
        return product_by_numpy(a, b)
    a, b = np.asarray(a, np.float32), np.ascontiguousarray(b, np.float32)
    (rows, inner), columns = a.shape, b.shape[1]
    out = np.empty((rows, columns), np.float32)
    lib.product(out.ctypes.data, a.ctypes.data, *a.strides, b.ctypes.data, rows, inner, columns)
    return out


def product_by_numpy(a: Floats, b: Floats) -> Floats:
    """Computes `product` with numpy: slower, without a C compiler, and the oracle of its tests."""
    out = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        out += a[:, k, None] * b[k]
    return out


def exp(x: Floats) -> Floats:
    """Computes e^x for x up to 80, to about float32 precision."""
    lib = library()
    return exp_by_numpy(x) if lib is None else _elementwise(lib.exponentials, x)


def exp_by_numpy(x: Floats) -> Floats:
    """Computes `exp` with numpy, as `product_by_numpy`."""
    wide = np.minimum(np.maximum(x.astype(np.float64), -200.0), 700.0)
    whole = np.rint(wide * (1 / math.log(2)))
    rest = (wide - whole * _LN2_HIGH) - whole * _LN2_LOW
    with np.errstate(over="ignore"):
        return np.ldexp(_horner(_EXP_TERMS, rest), whole.astype(np.int32)).astype(np.float32)


def ln(x: Floats) -> Floats:
    """Computes the natural logarithm of positive numbers, to about float32 precision."""
    lib = library()
    return ln_by_numpy(x) if lib is None else _elementwise(lib.logarithms, x)


def ln_by_numpy(x: Floats) -> Floats:
    """Computes `ln` with numpy, as `product_by_numpy`."""
    part, power = np.frexp(x.astype(np.float64))
    low = part < _HALF_ROOT
    part, power = np.where(low, 2 * part, part), power - low
    ratio = (part - 1) / (part + 1)
    series = 2 * ratio * _horner(_LOG_TERMS, ratio * ratio)
    result: Floats = (power * _LN2_HIGH + (power * _LN2_LOW + series)).astype(np.float32)
    return result


def row_sums(values: Floats) -> Floats:
    """Sums the rows of (n, m) to (n, 1), one column after the other."""
    lib = library()
    if lib is None:
        return row_sums_by_numpy(values)
    values = np.ascontiguousarray(values, np.float32)
    out = np.empty((len(values), 1), np.float32)
    lib.row_sums(out.ctypes.data, values.ctypes.data, *values.shape)
    return out


def row_sums_by_numpy(values: Floats) -> Floats:
    """Computes `row_sums` with numpy, as `product_by_numpy`."""
    sums: Floats = values[:, :1].copy()
    for column in range(1, values.shape[1]):
        sums += values[:, column : column + 1]
    return sums


def column_sums(values: Floats) -> Floats:
    """Sums the columns of (n, m) to (m,), one row after the other."""
    sums: Floats = product(np.ones((1, len(values)), np.float32), values)[0]
    return sums


def total(values: Floats) -> float:
    """Sums all values, rounded once."""
    exact: float = math.fsum(values.ravel().tolist())
    return exact


def _horner(terms: list[float], x: Doubles) -> Doubles:
    value = np.full_like(x, terms[0])
    for term in terms[1:]:
        value = value * x + term
    return value


def _elementwise(function: Any, x: Floats) -> Floats:
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty(x.shape, np.float32)
    function(out.ctypes.data, x.ctypes.data, x.size)
    return out


@functools.cache
def library() -> Any:
    """Returns the kernels in C; None where numpy is to compute."""
    if os.environ.get(VARIABLE) == "1":
        return None
    pointer, size, stride = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_ssize_t
    elementwise = (None, [pointer, pointer, size])
    functions: Functions = {
        "product": (None, [pointer, pointer, stride, stride, pointer, size, size, size]),
        "row_sums": (None, [pointer, pointer, size, size]),
        "exponentials": elementwise,
        "logarithms": elementwise,
        "backpropagate": (None, [size, pointer, size, *[pointer] * 8]),
        "backpropagation_scratch": (size, [size, pointer, size]),
    }
    try:
        return load_library("training", _FOLDER, functions, flags=("-ffp-contract=off",))
    except (CompilerError, OSError) as error:
        log.warning("numpy multiplies matrices, several times slower: %s", error)
        return None
