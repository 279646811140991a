# SPDX-License-Identifier: Apache-2.0
"""ResNets on images of 224 pixels.

``resnet_v1``: He et al., "Deep Residual Learning for Image Recognition" (2016), table 1, with the
stride in a unit's first convolution. ``resnet_v2``: He et al., "Identity Mappings in Deep Residual
Networks" (2016), with normalisation before convolutions and of the image. ``resnext``: Xie et al.,
"Aggregated Residual Transformations" (2017), with 32 groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workloads.architectures.network import Key, Network

_SIDE, _CLASSES = 224, 1000
_EXPANSION = 4  # outputs of a bottleneck unit for each inner channel
_WIDTHS = (64, 128, 256, 512)  # inner channels by stage
_GROUPS = 32

# Adds a unit: network, name, outputs, stride, and whether the unit is its stage's first.
_Unit = Callable[[Network, str, int, int, bool], None]


def resnet_v1(units: Sequence[int]) -> list[Key]:
    """Returns the keys of a ResNet with so many bottleneck units in each stage."""
    net = Network(3, _SIDE, bias=False)
    return _residual(net, units, _v1_unit, _EXPANSION)


def resnet_v2(units: Sequence[int], *, bottleneck: bool) -> list[Key]:
    """Returns the keys of a ResNet with so many units in each stage, of three or two layers."""
    net = Network(3, _SIDE, bias=False)
    net.normalisation("bn_data")
    unit, expansion = (_v2_bottleneck, _EXPANSION) if bottleneck else (_v2_basic, 1)
    return _residual(net, units, unit, expansion, last="bn1")


def resnext(units: Sequence[int]) -> list[Key]:
    """Returns the keys of a ResNeXt with so many units in each stage."""
    net = Network(3, _SIDE, bias=False)
    net.normalisation("bn_data")
    return _residual(net, units, _resnext_unit, _EXPANSION)


def _residual(
    net: Network, units: Sequence[int], unit: _Unit, expansion: int, last: str = ""
) -> list[Key]:
    """Adds the stages between the first convolution and the classifier.

    last: name of a normalisation after them, if there is one.
    """
    net.convolution("conv0", _WIDTHS[0], 7, stride=2, pad=3)
    net.normalisation("bn0")
    net.pooling(3, stride=2, pad=1)
    for stage, (count, width) in enumerate(zip(units, _WIDTHS, strict=True), start=1):
        for number in range(1, count + 1):
            stride = 2 if number == 1 and stage > 1 else 1
            name = f"stage{stage}_unit{number}"
            unit(net, name, expansion * width, stride, number == 1)
    if last:
        net.normalisation(last)
    net.global_pooling()
    net.dense("fc1", _CLASSES)
    return net.keys


def _shortcut(net: Network, layer: str, inputs: int, outputs: int) -> None:
    """Adds a projection of a unit's inputs to the area of its outputs."""
    net.channels = inputs
    net.convolution(layer, outputs, 1)  # the area is the outputs' already


def _v1_unit(net: Network, name: str, outputs: int, stride: int, first: bool) -> None:
    inputs, inner = net.channels, outputs // _EXPANSION
    net.convolution(f"{name}_conv1", inner, 1, stride=stride)
    net.normalisation(f"{name}_bn1")
    net.convolution(f"{name}_conv2", inner, 3, pad=1)
    net.normalisation(f"{name}_bn2")
    net.convolution(f"{name}_conv3", outputs, 1)
    net.normalisation(f"{name}_bn3")
    if first:
        _shortcut(net, f"{name}_conv1sc", inputs, outputs)
        net.normalisation(f"{name}_sc")


def _v2_bottleneck(net: Network, name: str, outputs: int, stride: int, first: bool) -> None:
    inputs, inner = net.channels, outputs // _EXPANSION
    net.normalisation(f"{name}_bn1")
    net.convolution(f"{name}_conv1", inner, 1)
    net.normalisation(f"{name}_bn2")
    net.convolution(f"{name}_conv2", inner, 3, stride=stride, pad=1)
    net.normalisation(f"{name}_bn3")
    net.convolution(f"{name}_conv3", outputs, 1)
    if first:
        _shortcut(net, f"{name}_sc", inputs, outputs)


def _v2_basic(net: Network, name: str, outputs: int, stride: int, first: bool) -> None:
    inputs = net.channels
    net.normalisation(f"{name}_bn1")
    net.convolution(f"{name}_conv1", outputs, 3, stride=stride, pad=1)
    net.normalisation(f"{name}_bn2")
    net.convolution(f"{name}_conv2", outputs, 3, pad=1)
    if first:
        _shortcut(net, f"{name}_sc", inputs, outputs)


def _resnext_unit(net: Network, name: str, outputs: int, stride: int, first: bool) -> None:
    inputs, inner = net.channels, outputs // 2
    net.convolution(f"{name}_conv1", inner, 1)
    net.normalisation(f"{name}_bn1")
    net.convolution(f"{name}_conv2", inner, 3, stride=stride, pad=1, groups=_GROUPS)
    net.normalisation(f"{name}_bn2")
    net.convolution(f"{name}_conv3", outputs, 1)
    net.normalisation(f"{name}_bn3")
    if first:
        _shortcut(net, f"{name}_sc", inputs, outputs)
        net.normalisation(f"{name}_sc_bn")
