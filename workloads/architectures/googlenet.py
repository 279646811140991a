# SPDX-License-Identifier: Apache-2.0
"""GoogLeNet: Szegedy et al., "Going Deeper with Convolutions" (2015), table 1.

Without the auxiliary classifiers. The last pooling is of 7 x 7 positions without padding, whatever
the image, so images of 299 pixels leave 2 x 2 and a classifier four times as large.
"""

from __future__ import annotations

from typing import NamedTuple

from workloads.architectures.network import Key, Network

_CLASSES = 1000


class _Block(NamedTuple):
    """Filters of an inception block; of the convolutions before those of 3 x 3 and 5 x 5, too."""

    single: int
    before3: int
    three: int
    before5: int
    five: int
    pooled: int


_STAGES = (
    {"3a": _Block(64, 96, 128, 16, 32, 32), "3b": _Block(128, 128, 192, 32, 96, 64)},
    {
        "4a": _Block(192, 96, 208, 16, 48, 64),
        "4b": _Block(160, 112, 224, 24, 64, 64),
        "4c": _Block(128, 128, 256, 24, 64, 64),
        "4d": _Block(112, 144, 288, 32, 64, 64),
        "4e": _Block(256, 160, 320, 32, 128, 128),
    },
    {"5a": _Block(256, 160, 320, 32, 128, 128), "5b": _Block(384, 192, 384, 48, 128, 128)},
)


def googlenet(side: int, *, partial: bool) -> list[Key]:
    """Returns the keys of GoogLeNet on images of a size; partial: as of ``Network.pooling``."""
    net = Network(3, side, bias=True)
    net.convolution("conv_conv1", 64, 7, stride=2, pad=3)
    net.pooling(3, stride=2, partial=partial)
    net.convolution("conv_conv2", 64, 1)
    net.convolution("conv_conv3", 192, 3, pad=1)
    for blocks in _STAGES:
        net.pooling(3, stride=2, partial=partial)
        for name, block in blocks.items():
            _inception(net, f"conv_in{name}", block)
    net.pooling(7)
    net.dense("fullyconnected0", _CLASSES)
    return net.keys


def _inception(net: Network, name: str, block: _Block) -> None:
    inputs = net.channels
    net.convolution(f"{name}_1x1", block.single, 1)
    net.channels = inputs
    net.convolution(f"{name}_3x3_reduce", block.before3, 1)
    net.convolution(f"{name}_3x3", block.three, 3, pad=1)
    net.channels = inputs
    net.convolution(f"{name}_5x5_reduce", block.before5, 1)
    net.convolution(f"{name}_5x5", block.five, 5, pad=2)
    net.channels = inputs  # the pooling before the projection keeps size and channels
    net.convolution(f"{name}_proj", block.pooled, 1)
    net.channels = block.single + block.three + block.five + block.pooled
