# SPDX-License-Identifier: Apache-2.0
"""Programs as older compilers wrote them: what the format has and this p4c does not write."""

from __future__ import annotations

import json
from typing import Any

NAMES = {
    "assign": "modify_field",
    "assign_header": "copy_header",
}


def rewritten(program: bytes) -> bytes:
    """The same program in other words: older names of primitives, no_op, divisions, size_stack."""
    document = json.loads(program)
    for action in document["actions"]:
        action["primitives"] = [_primitive(one) for one in action["primitives"]]
        if not any("_jump" in one["op"] for one in action["primitives"]):
            action["primitives"].insert(0, {"op": "no_op", "parameters": []})
    return json.dumps(_expression(document), sort_keys=True).encode()


def _primitive(one: Any) -> Any:
    return {**one, "op": NAMES.get(one["op"], one["op"])}


def _expression(node: Any) -> Any:
    if isinstance(node, list):
        return [_expression(one) for one in node]
    if not isinstance(node, dict):
        return node
    node = {key: _expression(value) for key, value in node.items()}
    if node.get("op") == "*" and _is_fields(node):
        # BMv2 ends at a division by zero or of something negative.
        dividend = _call("&", node["left"], {"type": "hexstr", "value": "0x" + "f" * 32})
        divisor = _call("&", node["right"], {"type": "hexstr", "value": "0xffff"})
        divisor = _call("|", divisor, {"type": "hexstr", "value": "0x1"})
        quotient, remainder = _call("/", dividend, divisor), _call("%", dividend, divisor)
        return {"op": "^", "left": quotient, "right": remainder}
    if node.get("op") == "last_stack_index":
        return {"op": "-", "left": {"type": "expression", "value": {**node, "op": "size_stack"}},
                "right": {"type": "hexstr", "value": "0x1"}}  # fmt: skip
    return node


def _is_fields(node: Any) -> bool:
    return all(node[side]["type"] == "field" for side in ("left", "right"))


def _call(op: str, left: Any, right: Any) -> Any:
    return {"type": "expression", "value": {"op": op, "left": left, "right": right}}
