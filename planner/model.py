# SPDX-License-Identifier: Apache-2.0
"""The analytic model: every prediction that `rackhub plan` makes for a network."""

from __future__ import annotations

from planner.analytic import Prediction, Setting, Work, predict_placements
from planner.network import Network
from planner.streamed import predict_baselines

__all__ = ["predictions"]


def predictions(network: Network, work: Work, setting: Setting) -> list[Prediction]:
    """Predicts every placement with each of its trees, and the baselines, fastest first.

    Those that cannot run come last.
    """
    found = [
        *predict_placements(network, work, setting),
        *predict_baselines(network, work, setting),
    ]
    return sorted(found, key=lambda one: (bool(one.refused), not one.bytes, one.seconds))
