# SPDX-License-Identifier: Apache-2.0
"""The analytic model: all that `rackhub plan` predicts for a network."""

from __future__ import annotations

from planner.analytic import Prediction, Setting, Work, predict_placements
from planner.network import Network
from planner.streamed import predict_baselines

__all__ = ["predictions"]


def predictions(network: Network, work: Work, setting: Setting) -> list[Prediction]:
    """Of every placement with each of its trees, and of the baselines, quickest first.

    Those that this project cannot run are behind those that it can.
    """
    found = [
        *predict_placements(network, work, setting),
        *predict_baselines(network, work, setting),
    ]
    return sorted(found, key=lambda one: (bool(one.refused), not one.bytes, one.seconds))
