# SPDX-License-Identifier: Apache-2.0
"""VGG: Simonyan, Zisserman, "Very Deep Convolutional Networks" (2015), table 1, A and E."""

from __future__ import annotations

from collections.abc import Sequence

from workloads.architectures.network import Key, Network

_SIDE, _CLASSES = 224, 1000
_FILTERS = (64, 128, 256, 512, 512)


def vgg(convolutions: Sequence[int]) -> list[Key]:
    """Returns the keys of a VGG with so many convolutions in each stage."""
    net = Network(3, _SIDE, bias=True)
    for stage, (count, filters) in enumerate(zip(convolutions, _FILTERS, strict=True), start=1):
        for number in range(1, count + 1):
            net.convolution(f"conv{stage}_{number}", filters, 3, pad=1)
        net.pooling(2, stride=2)
    net.dense("fc6", 4096)
    net.dense("fc7", 4096)
    net.dense("fc8", _CLASSES)
    return net.keys
