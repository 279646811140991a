# SPDX-License-Identifier: Apache-2.0
"""The analytic model: every prediction that `rackhub plan` makes for a network."""

from __future__ import annotations

from planner.collectives import COLLECTIVES, Team
from planner.iteration_time import Prediction, Setting, Work, predict_placements
from planner.network import Network
from planner.streamed import StreamModel


def predictions(network: Network, work: Work, setting: Setting) -> list[Prediction]:
    """Predicts every placement with each of its trees, and the baselines, fastest first.

    Those that cannot run come last; baselines that need more servers are left out.
    """
    model = StreamModel(network, work, setting)
    team = Team.of(network)
    found = predict_placements(network, work, setting)
    found += [one.predict(model) for one in COLLECTIVES.values() if one.suits(team)]
    return sorted(found, key=lambda one: (bool(one.refused), not one.bytes, one.seconds))
