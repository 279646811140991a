# SPDX-License-Identifier: Apache-2.0
"""Reads meters and learn lists of a BMv2 JSON: `meter_arrays`, `learn_lists` (JSON_format.md)."""

from __future__ import annotations

from collections.abc import Sequence

from switch.loader.header_types import MOST_CELLS, check, source_of
from switch.loader.reader import Reader
from switch.program.errors import ProgramError, UnsupportedConstruct
from switch.program.expressions import Data, FieldValue, Json
from switch.program.model import LearnList, Meter

_TOKENS = ("packets", "bytes")
_RATES = 2  # committed and peak


def read_meter(reader: Reader, node: Json) -> Meter:
    """Reads one of `meter_arrays`. Raises UnsupportedConstruct, ProgramError."""
    name, size, source = node["name"], node.get("size", 0), source_of(node)
    check(0 <= size <= MOST_CELLS, f"meter '{name}' has {size} cells")
    if node["rate_count"] != _RATES or node["type"] not in _TOKENS:
        raise UnsupportedConstruct(
            f"meter '{name}' of {node['rate_count']} rates and {node['type']}", source
        )
    if not node["is_direct"]:
        return Meter(name, size, node["type"], None, None)
    target = _field(reader.data({"type": "field", "value": node["result_target"]}, node))
    if target is None:
        raise UnsupportedConstruct(f"the target of direct meter '{name}'", source)
    return Meter(name, size, node["type"], node["binding"], target)


def read_learn_lists(reader: Reader, nodes: Sequence[Json]) -> dict[int, LearnList]:
    """Reads `learn_lists` by id. Raises UnsupportedConstruct; ProgramError for two of one name and
    different widths."""
    found: dict[int, LearnList] = {}
    widths: dict[str, list[int]] = {}
    for node in nodes:
        fields = [_field(reader.data(one, node)) for one in node["elements"]]
        elements = tuple(one for one in fields if one is not None)
        if len(elements) != len(fields):
            raise UnsupportedConstruct(f"a constant in digest '{node['name']}'", source_of(node))
        own = [one.width for one in elements]
        if widths.setdefault(node["name"], own) != own:
            raise ProgramError(f"digest '{node['name']}' has messages of different shapes")
        found[node["id"]] = LearnList(node["id"], node["name"], elements, source_of(node))
    return found


def _field(value: Data) -> FieldValue | None:
    return value if isinstance(value, FieldValue) else None
