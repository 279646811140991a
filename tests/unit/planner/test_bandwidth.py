# SPDX-License-Identifier: Apache-2.0
"""Tests PHub's table of minimum bandwidths against the formulas."""

from __future__ import annotations

import pytest

from planner.bandwidth import MODELS, Model, minimum, uplink
from specs.placements import KINDS

# SoCC'18, table 2: Gbit/s for 8 workers, CC, CS, NCC and NCS, in whole ones.
PUBLISHED = {
    "AlexNet": (1232, 308, 1408, 176),
    "GoogleNet": (40, 10, 46, 6),
    "Inception": (44, 11, 50, 6),
    "ResNet-269": (122, 31, 140, 17),
}
# "MB" of gradients, as PHub gives them.
SIZES = {"AlexNet": 194, "GoogleNet": 38, "Inception": 91, "ResNet-269": 390}


@pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])
def test_the_published_table(model: Model) -> None:
    computed = [minimum(model, 8, kind) / 1e9 for kind in KINDS[:4]]
    assert computed == pytest.approx(PUBLISHED[model.name], abs=0.5)


@pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])
def test_a_published_megabyte_has_two_to_the_twentieth_bytes(model: Model) -> None:
    assert model.size / 2**20 == pytest.approx(SIZES[model.name], abs=0.7)
    assert model.size / 1e6 > SIZES[model.name] + 1


def test_with_switches_servers_and_uplinks_carry_a_fraction() -> None:
    model = Model("one byte a second", 1, 1)
    by_name = {kind.name: minimum(model, 8, kind) for kind in KINDS}
    assert by_name["ncc"] == 8 * by_name["inc-server"]
    assert by_name["inc"] == 0
    assert uplink(model, 8, aggregated=False) == 8 * uplink(model, 8, aggregated=True) == 8 * 16


def test_one_worker_needs_no_exchange() -> None:
    with pytest.raises(ValueError, match="1 workers exchange nothing"):
        minimum(MODELS[0], 1, KINDS[0])
