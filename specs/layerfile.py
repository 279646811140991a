# SPDX-License-Identifier: Apache-2.0
"""Layer traces: the times of a model's layers, as measured by a profiler (docs/reference/files.md).

    layer_times:
      - {name: layer1, forward_seconds: 0.0021, backward_seconds: 0.0043}

The format is YAML, and so JSON. ``LayerTrace.check`` compares a trace with the layers of a model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from topologies.model.documents import Document, DocumentError, Problem, shown
from topologies.model.documents import load as load_document
from topologies.model.wording import few

_MOST_LAYERS = 20_000

_JSON_NUMBER = re.compile(r"-?\d+(\.\d+)?[eE][+-]?\d+")  # YAML 1.1 reads some of these as text


def _number(value: object) -> object:
    return float(value) if isinstance(value, str) and _JSON_NUMBER.fullmatch(value) else value


_Limits = Field(strict=True, ge=0, le=3600, allow_inf_nan=False)
_Seconds = Annotated[float, BeforeValidator(_number), _Limits]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LayerTimes(_Strict):
    """Seconds of one layer's forward and backward passes."""

    name: str = Field(min_length=1, max_length=200)
    forward_seconds: _Seconds
    backward_seconds: _Seconds


class _File(_Strict):
    layer_times: list[LayerTimes] = Field(min_length=1, max_length=_MOST_LAYERS)


@dataclass(frozen=True)
class LayerTrace:
    """A valid layer trace: times by layer."""

    times: dict[str, LayerTimes]
    document: Document[_File] = field(repr=False)

    @property
    def seconds(self) -> float:
        """Total of both passes of all layers."""
        return sum(one.forward_seconds + one.backward_seconds for one in self.times.values())

    def check(self, layers: Sequence[str], model: str) -> None:
        """Raises ``DocumentError`` unless the trace has exactly these layers of ``model``."""
        problems: list[Problem] = []
        for number, name in enumerate(self.times):
            if name not in layers:
                text = f"{model} has no layer {shown(name)}; it has {few(layers)}"
                problems.append(self.document.problem(("layer_times", number, "name"), text))
        if missing := [name for name in layers if name not in self.times]:
            text = f"nothing of {few(missing)}, which {model} has"
            problems.append(self.document.problem(("layer_times",), text))
        if problems:
            raise DocumentError(problems)


def load(path: Path) -> LayerTrace:
    """Reads a layer trace; raises ``DocumentError``."""
    document = load_document(path, _File)
    times: dict[str, LayerTimes] = {}
    for number, one in enumerate(document.content.layer_times):
        if one.name in times:
            document.refuse(("layer_times", number, "name"), f"{shown(one.name)} is given twice")
        times[one.name] = one
    document.check()
    return LayerTrace(times, document)
