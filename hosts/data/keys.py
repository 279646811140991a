# SPDX-License-Identifier: Apache-2.0
"""A worker's declaration of keys: names with arrays, numbers of elements, or shapes and dtypes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hosts.data.tensors import DTYPES, dtype_of
from hosts.errors import WrongShapeError, WrongTypeError
from protocol.payloads import Floats

Keys = Mapping[str, int | Floats]
Shape = int | Sequence[int]
Shapes = Mapping[str, Shape] | Sequence[Shape]
Types = npt.DTypeLike | Mapping[str, npt.DTypeLike] | list[npt.DTypeLike]
_T = TypeVar("_T")


def declared(keys: Keys | Iterable[str], shapes: Shapes | None, dtypes: Types | None) -> Keys:
    """Returns all keys as arrays or numbers of elements; keys given by shape and dtype become
    arrays without memory.

    shapes, dtypes: by name, or in the keys' order; one dtype applies to all, None is float32. They
    must agree with keys given as arrays. Raises WrongShapeError (also for a repeated name, or one
    without shape) and WrongTypeError.
    """
    names = list(keys)
    if not names:
        raise WrongShapeError("no keys; a job has at least one")
    if "" in names:
        raise WrongShapeError("a key without a name")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise WrongShapeError(f"{', '.join(twice)}: named twice")
    given: Mapping[str, int | Floats] = keys if isinstance(keys, Mapping) else {}
    if shapes is None and dtypes is None and isinstance(keys, Mapping):
        for name, key in given.items():
            if not isinstance(key, np.ndarray):
                _elements(name, key)
            elif not key.size:
                raise WrongShapeError(f"{name}: an array of shape {key.shape} has no elements")
        return given
    shape_of = _by_name(names, shapes, "shapes") if shapes is not None else {}
    if dtypes is None or isinstance(dtypes, Mapping | list):
        type_of = _by_name(names, dtypes, "dtypes") if dtypes is not None else {}
    else:
        type_of = dict.fromkeys(names, dtypes)
    found: dict[str, int | Floats] = {}
    for name in names:
        one = given.get(name)
        if one is None and name not in shape_of:
            raise WrongShapeError(f"{name}: has no shape")
        kind = _type(name, type_of.get(name))
        if isinstance(one, np.ndarray):
            if name in type_of and one.dtype != kind:
                raise WrongTypeError(f"{name}: declared as {kind}, given {one.dtype}")
            kind = one.dtype
        shape = _shape(name, shape_of.get(name, one))
        if one is not None and name in shape_of and shape != _shape(name, one):
            raise WrongShapeError(f"{name}: declared with shape {shape}, given {np.shape(one)}")
        found[name] = one if one is not None else np.broadcast_to(np.zeros((), kind), shape)
    return found


def _elements(name: str, number: object) -> None:
    whole = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
    if not whole or number < 1:  # type: ignore[operator]
        text = f"{name}: {number!r} is neither an array nor a number of elements, at least 1"
        raise WrongShapeError(text)


def _by_name(
    names: Sequence[str], what: Mapping[str, _T] | Sequence[_T], kind: str
) -> dict[str, _T]:
    if isinstance(what, Mapping):
        strange = [name for name in what if name not in names]
        if strange:
            raise WrongShapeError(f"{kind} of {', '.join(strange)}, which is no key")
        return dict(what)
    if len(what) != len(names):
        raise WrongShapeError(f"{len(what)} {kind} for {len(names)} keys")
    return dict(zip(names, what, strict=True))


def _shape(name: str, shape: Any) -> tuple[int, ...]:
    if isinstance(shape, np.ndarray):
        return tuple(shape.shape)
    try:
        sides = tuple(int(n) for n in ([shape] if np.ndim(shape) == 0 else shape))
    except (TypeError, ValueError) as error:
        raise WrongShapeError(f"{name}: {shape!r} is no shape") from error
    if any(side < 1 for side in sides):
        raise WrongShapeError(f"{name}: a key has at least one element, not shape {sides}")
    return sides


def _type(name: str, kind: Any) -> np.dtype[Any]:
    if isinstance(kind, str) and kind in DTYPES:
        return dtype_of(kind)
    try:
        return np.dtype(np.float32 if kind is None else kind)
    except TypeError as error:
        raise WrongTypeError(f"{name}: {kind!r} is no dtype") from error
