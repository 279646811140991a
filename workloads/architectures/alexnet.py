# SPDX-License-Identifier: Apache-2.0
"""AlexNet: Krizhevsky, Sutskever, Hinton, "ImageNet Classification with Deep CNNs" (2012).

Without the division of convolutions over two GPUs, on images of 224 pixels without padding, as
MXNet's example trains it.
"""

from __future__ import annotations

from workloads.architectures.network import Key, Network

_SIDE, _CLASSES = 224, 1000


def alexnet() -> list[Key]:
    """Returns the keys of AlexNet."""
    net = Network(3, _SIDE, bias=True)
    net.convolution("conv1", 96, 11, stride=4)
    net.pooling(3, stride=2)
    net.convolution("conv2", 256, 5, pad=2)
    net.pooling(3, stride=2)
    net.convolution("conv3", 384, 3, pad=1)
    net.convolution("conv4", 384, 3, pad=1)
    net.convolution("conv5", 256, 3, pad=1)
    net.pooling(3, stride=2)
    net.dense("fc1", 4096)
    net.dense("fc2", 4096)
    net.dense("fc3", _CLASSES)
    return net.keys
