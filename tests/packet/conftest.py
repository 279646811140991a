# SPDX-License-Identifier: GPL-2.0-only
"""Fixtures of packet tests: the embedded target in process and on veths, and BMv2 if installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from protocol.outcomes import Outcome
from switch.p4runtime.device import Device
from tests.namespaces import needs_namespaces
from tests.packet.differential.case import DEVICE
from tests.packet.node.node_rig import outcomes
from tests.packet.targets import Target, opened

TARGETS = [
    "in-process",
    pytest.param("embedded", marks=needs_namespaces),
    pytest.param("bmv2", marks=[needs_namespaces, pytest.mark.bmv2]),
]


@pytest.fixture(scope="session", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """A switch with the default build; tests share it and use jobs and slots of their own."""
    yield from opened(request.param)


@pytest.fixture
def device() -> Iterator[Device]:
    """The embedded target, called: no program yet."""
    made = Device(DEVICE)
    yield made
    made.close()


@pytest.fixture
def counted(target: Target) -> Callable[[], dict[Outcome, int]]:
    """What was counted since the test began, but for forwarded markers; zeros left out."""
    before = outcomes(target)

    def since() -> dict[Outcome, int]:
        now = outcomes(target)
        return {
            outcome: now[outcome] - before[outcome]
            for outcome in Outcome
            if now[outcome] != before[outcome] and outcome != Outcome.FORWARDED
        }

    return since
