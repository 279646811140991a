# SPDX-License-Identifier: Apache-2.0
"""Times of a job's layers: measured ones, or an iteration's divided by multiplications.

The gradients of a layer's inputs and of its weights take a multiplication each for one of the
forward pass, so the backward pass takes twice as long.
"""

from __future__ import annotations

from collections.abc import Mapping

from specs.jobfile import JobFile
from specs.layerfile import LayerTimes
from workloads.architectures.registry import keys_of

_BACKWARD = 2


def times_of(file: JobFile) -> Mapping[str, LayerTimes] | None:
    """Returns the times of each layer.

    None if gradients are ready together, or the model's multiplications depend on the example.
    """
    if file.layer_times is not None:
        return file.layer_times.times
    model, iteration = file.spec.model, file.spec.compute.iteration
    if model is None or iteration is None:
        return None
    macs: dict[str, int] = {}
    for key in keys_of(model):
        if key.macs is None:
            return None
        macs[key.layer] = macs.get(key.layer, 0) + key.macs
    each = iteration / (1 + _BACKWARD) / sum(macs.values())
    return {
        layer: LayerTimes(
            name=layer,
            forward_seconds=each * count,
            backward_seconds=_BACKWARD * each * count,
        )
        for layer, count in macs.items()
    }
