# SPDX-License-Identifier: Apache-2.0
"""Counts the parameters and multiplications of a network, layer by layer in forward order."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Height and width, of a kernel or a feature map.
Area = tuple[int, int]


@dataclass(frozen=True)
class Key:
    """One parameter tensor, which frameworks exchange by itself.

    layer: the layer whose gradients are ready together.
    part: what it is of the layer: weight, bias, gamma or beta.
    macs: multiply-accumulate operations of an example's forward pass; None if they depend on the
        example.
    """

    layer: str
    part: str
    shape: tuple[int, ...]
    macs: int | None = 0

    @property
    def name(self) -> str:
        """The key's name, as MXNet gives it."""
        return f"{self.layer}_{self.part}"

    @property
    def parameters(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


class Network:
    """A convolutional network, built by calls in forward order.

    channels, area: of the feature map that the next layer gets. Branches set both back. bias:
    whether convolutions have one.
    """

    def __init__(self, channels: int, side: int, *, bias: bool) -> None:
        self.channels = channels
        self.area: Area = (side, side)
        self.keys: list[Key] = []
        self._bias = bias

    def convolution(
        self,
        layer: str,
        filters: int,
        kernel: int | Area,
        *,
        stride: int = 1,
        pad: int | Area = 0,
        groups: int = 1,
    ) -> None:
        """Adds a convolution; each group of filters sees its share of the channels."""
        size = _area(kernel)
        self.area = self._moved(size, stride, _area(pad))
        shape = (filters, self.channels // groups, *size)
        self.keys.append(Key(layer, "weight", shape, math.prod(shape) * math.prod(self.area)))
        if self._bias:
            self.keys.append(Key(layer, "bias", (filters,)))
        self.channels = filters

    def normalisation(self, layer: str) -> None:
        """Adds a batch normalisation; its moving averages are not exchanged."""
        self.keys += [Key(layer, part, (self.channels,)) for part in ("gamma", "beta")]

    def pooling(self, kernel: int, *, stride: int = 1, pad: int = 0, partial: bool = False) -> None:
        """Adds a pooling; partial: windows that exceed the border count, too."""
        self.area = self._moved(_area(kernel), stride, _area(pad), partial=partial)

    def global_pooling(self) -> None:
        """Adds a pooling of each channel to one number."""
        self.area = (1, 1)

    def dense(self, layer: str, units: int) -> None:
        """Adds a fully connected layer with biases."""
        shape = (units, self.channels * math.prod(self.area))
        self.keys.append(Key(layer, "weight", shape, math.prod(shape)))
        self.keys.append(Key(layer, "bias", (units,)))
        self.channels, self.area = units, (1, 1)

    def _moved(self, kernel: Area, stride: int, pad: Area, *, partial: bool = False) -> Area:
        """Returns the number of positions of a window, down and across."""
        more = stride - 1 if partial else 0
        down, across = (
            (side + 2 * around - size + more) // stride + 1
            for side, size, around in zip(self.area, kernel, pad, strict=True)
        )
        return down, across


def _area(given: int | Area) -> Area:
    return (given, given) if isinstance(given, int) else given
