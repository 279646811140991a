# SPDX-License-Identifier: Apache-2.0
"""Addresses fields in files by paths, as error messages write them: ``racks[0].workers``."""

from __future__ import annotations

import copy
import re
from typing import Any

from topologies.model.documents import Location

_PART = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)((?:\[[0-9]{1,6}\])*)")


def parse(path: str) -> Location:
    """Splits a path into its parts; raises ``ValueError`` with an example if it is malformed."""
    parts: list[str | int] = []
    for word in path.split("."):
        match = _PART.fullmatch(word)
        if match is None:
            raise ValueError("is no path of a field; write it like defaults.rate, racks[0].workers")
        parts.append(match[1])
        parts += [int(number) for number in re.findall(r"[0-9]+", match[2])]
    return tuple(parts)


def replaced(content: dict[str, Any], location: Location, value: Any) -> dict[str, Any]:
    """Returns a copy in which a field has another value; creates missing groups around it.

    Raises ``ValueError`` if a parent is no group, or a list that is too short.
    """
    result = copy.deepcopy(content)
    place: Any = result
    for depth, part in enumerate(location):
        around = _dotted(location[:depth]) or "the file"
        last = depth == len(location) - 1
        if isinstance(part, int):
            if not isinstance(place, list):
                raise ValueError(f"{around} is no list")
            if part >= len(place):
                raise ValueError(f"{around} has {len(place)} entries; the first is [0]")
        elif not isinstance(place, dict):
            raise ValueError(f"{around} is no group of fields")
        elif not last and place.get(part) is None:
            if isinstance(location[depth + 1], int):
                raise ValueError(f"there is no list {_dotted(location[: depth + 1])}")
            place[part] = {}
        if last:
            place[part] = value
        else:
            place = place[part]
    return result


def found(content: Any, location: Location) -> Any:
    """Returns the value at a location in a checked file's content; None if it is not given."""
    for part in location:
        if isinstance(part, int):
            content = content[part] if isinstance(content, list) and part < len(content) else None
        elif isinstance(content, dict):
            content = content.get(part)
        else:
            content = getattr(content, part, getattr(content, f"{part}_", None))
    return content


def within(field: str, path: str) -> bool:
    """Returns whether a field, as problems name it, is at a path or inside it."""
    return field == path or field.startswith((f"{path}.", f"{path}["))


def _dotted(location: Location) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
