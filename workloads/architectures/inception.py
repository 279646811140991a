# SPDX-License-Identifier: Apache-2.0
"""Inception-v3: Szegedy et al., "Rethinking the Inception Architecture" (2016), table 1.

With batch normalisation after each convolution and without the auxiliary classifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from workloads.architectures.network import Area, Key, Network

_SIDE, _CLASSES = 299, 1000


class _Step(NamedTuple):
    """A convolution of a branch, padded unless it moves by 2."""

    filters: int
    kernel: Area = (1, 1)
    stride: int = 1


_ROW, _COLUMN = (1, 7), (7, 1)


class _Inception:
    """Builds blocks of branches whose outputs are joined."""

    def __init__(self) -> None:
        self.net = Network(3, _SIDE, bias=False)

    def convolution(self, name: str, step: _Step, *, pad: bool = True) -> None:
        net = self.net
        down, across = step.kernel
        around = (down // 2, across // 2) if pad and step.stride == 1 else 0
        net.convolution(f"{name}_conv2d", step.filters, step.kernel, stride=step.stride, pad=around)
        net.normalisation(f"{name}_batchnorm")

    def block(self, name: str, branches: dict[str, Sequence[_Step]], *, kept: int = 0) -> None:
        """Adds branches by name; kept: channels that a pooling by itself passes on."""
        inputs, area, joined = self.net.channels, self.net.area, kept
        for branch, steps in branches.items():
            self.net.channels, self.net.area = inputs, area
            for number, step in enumerate(steps):
                self.convolution(_numbered(f"{name}{branch}_conv", number), step)
            joined += self.net.channels
        self.net.channels = joined

    def split_block(self, name: str) -> None:
        """Adds a block in which two branches end in a row and a column of 3, side by side."""
        inputs, joined = self.net.channels, 0
        row, column = _Step(384, (1, 3)), _Step(384, (3, 1))
        for branch, steps, splits in (
            ("", [_Step(320)], False),
            ("_tower", [_Step(384)], True),
            ("_tower_1", [_Step(448), _Step(384, (3, 3))], True),
            ("_tower_2", [_Step(192)], False),
        ):
            self.net.channels = inputs
            for number, step in enumerate(steps):
                self.convolution(_numbered(f"{name}{branch}_conv", number), step)
            if not splits:
                joined += self.net.channels
                continue
            split = self.net.channels
            for number, step in enumerate((row, column)):
                self.net.channels = split
                self.convolution(_numbered(f"{name}{branch}_mixed_conv", number), step)
                joined += step.filters
        self.net.channels = joined


def _numbered(name: str, number: int) -> str:
    return f"{name}_{number}" if number else name


def inception_v3() -> list[Key]:
    """Returns the keys of Inception-v3."""
    made = _Inception()
    net, square = made.net, (3, 3)
    made.convolution("conv", _Step(32, square, 2))
    made.convolution("conv_1", _Step(32, square), pad=False)
    made.convolution("conv_2", _Step(64, square))
    net.pooling(3, stride=2)
    made.convolution("conv_3", _Step(80))
    made.convolution("conv_4", _Step(192, square), pad=False)
    net.pooling(3, stride=2)
    for name, pooled in (("mixed", 32), ("mixed_1", 64), ("mixed_2", 64)):
        branches: dict[str, Sequence[_Step]] = {
            "": [_Step(64)],
            "_tower": [_Step(48), _Step(64, (5, 5))],
            "_tower_1": [_Step(64), _Step(96, square), _Step(96, square)],
            "_tower_2": [_Step(pooled)],
        }
        made.block(name, branches)
    branches = {
        "": [_Step(384, square, 2)],
        "_tower": [_Step(64), _Step(96, square), _Step(96, square, 2)],
    }
    made.block("mixed_3", branches, kept=net.channels)
    for number, inner in enumerate((128, 160, 160, 192), start=4):
        row, column = _Step(inner, _ROW), _Step(inner, _COLUMN)
        branches = {
            "": [_Step(192)],
            "_tower": [_Step(inner), row, _Step(192, _COLUMN)],
            "_tower_1": [_Step(inner), column, row, column, _Step(192, _ROW)],
            "_tower_2": [_Step(192)],
        }
        made.block(f"mixed_{number}", branches)
    branches = {
        "_tower": [_Step(192), _Step(320, square, 2)],
        "_tower_1": [_Step(192), _Step(192, _ROW), _Step(192, _COLUMN), _Step(192, square, 2)],
    }
    made.block("mixed_8", branches, kept=net.channels)
    made.split_block("mixed_9")
    made.split_block("mixed_10")
    net.global_pooling()
    net.dense("fc1", _CLASSES)
    return net.keys
