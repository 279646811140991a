# SPDX-License-Identifier: Apache-2.0
"""Reads header types of a BMv2 JSON document; source positions and bounds for all readers of
one."""

from __future__ import annotations

from switch.program.errors import ProgramError, Source, UnsupportedConstruct
from switch.program.expressions import Field, Json
from switch.program.model import HeaderType

# The bits of the longest frame; the cells that a bit<32> can index.
MOST_BITS = 8 * 16384
MOST_CELLS = 1 << 32


def source_of(node: Json) -> Source | None:
    """Returns the `source_info` of a JSON object, None without one."""
    info = node.get("source_info") if isinstance(node, dict) else None
    if not info:
        return None
    return Source(
        info.get("filename", "?"),
        info.get("line", 0),
        info.get("column", 0),
        info.get("source_fragment", ""),
    )


def check(holds: bool, otherwise: str) -> None:
    """Raises ProgramError with `otherwise` unless `holds`."""
    if not holds:
        raise ProgramError(f"{otherwise}: out of range")


def header_type(node: Json) -> HeaderType:
    """Reads one of `header_types`. Raises ProgramError, UnsupportedConstruct."""
    fields: list[Field] = []
    for name, width, *rest in node["fields"]:
        varbit = width == "*"
        if varbit:
            width = _varbit_width(node, name)
        check(1 <= width <= MOST_BITS, f"field '{node['name']}.{name}' has {width} bits")
        fields.append(Field(name, width, bool(rest and rest[0]), varbit))
        if len(rest) > 1 and rest[1]:
            raise UnsupportedConstruct(f"saturating field '{node['name']}.{name}'")
    return HeaderType(node["name"], tuple(fields))


def _varbit_width(node: Json, name: str) -> int:
    """Returns the most bits that a header's varbit field may have."""
    fixed = [width for _, width, *_ in node["fields"] if width != "*"]
    if len(fixed) != len(node["fields"]) - 1:
        raise UnsupportedConstruct(f"several varbit fields in '{node['name']}'", source_of(node))
    if "max_length" not in node:
        raise UnsupportedConstruct(f"varbit field '{name}' without a length", source_of(node))
    if sum(fixed) % 8:  # lengths are whole bytes, so no packet can hold such a header
        raise UnsupportedConstruct(
            f"header type '{node['name']}', which is never whole bytes,", source_of(node)
        )
    return int(8 * node["max_length"] - sum(fixed))
