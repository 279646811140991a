# SPDX-License-Identifier: Apache-2.0
"""Reads action profiles and their selectors."""

from __future__ import annotations

from switch.program.expressions import Json
from switch.program.model import ActionProfile


def nodes(document: Json) -> list[Json]:
    """Returns the action profiles of a BMv2 JSON document."""
    return [
        one for pipeline in document["pipelines"] for one in pipeline.get("action_profiles", [])
    ]


def selectors(document: Json) -> list[Json]:
    """Returns the calculations of selectors, which have no name in the JSON."""
    return [
        {**one["selector"], "name": _selector(one), "source_info": one.get("source_info")}
        for one in nodes(document)
        if "selector" in one
    ]


def profile(node: Json) -> ActionProfile:
    """Reads one of `action_profiles`."""
    return ActionProfile(node["name"], _selector(node) if "selector" in node else None)


def _selector(node: Json) -> str:
    return f"{node['name']}$selector"
