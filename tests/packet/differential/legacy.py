# SPDX-License-Identifier: Apache-2.0
"""Differential cases of JSON constructs that the current p4c does not emit."""

from __future__ import annotations

import itertools
import json
from typing import Any

NAMES = {"assign": "modify_field", "assign_header": "copy_header"}
# Headers that p4c compares field by field, by what stands in the source.
COMPARED = {
    "hdr.tail == hdr.other": ("==", "tail", "other"),
    "hdr.items[0] != hdr.items[3]": ("!=", "items[0]", "items[3]"),
}


def rewritten(program: bytes) -> bytes:
    """The program in other words: older names of primitives and hashes, no_op, size_stack, whole
    headers and stacks. Products become quotients and remainders, and some actions jump."""
    document = json.loads(program)
    names = {one["name"] for one in document["headers"]}
    for action in document["actions"]:
        action["primitives"] = _stacks(action["primitives"])
        if "." in action["name"]:  # of the source, not a statement that p4c made an action of
            action["primitives"] = _jumping(action["primitives"], names)
    for pipeline in document["pipelines"]:
        for one in pipeline["conditionals"]:
            _compare(one)
    for one in document["calculations"]:
        one["algo"] = one["algo"].replace("csum16", "cksum16")
    return json.dumps(_expression(document), sort_keys=True).encode()


def unions_as_wholes(program: bytes) -> bytes:
    """The program with copies of header unions and of stacks of them as one primitive each, which
    p4c emits only for parameters of parsers. The state `single` copies a stack, too, and extracts
    to the copy's next element."""
    document = json.loads(program)
    headers = {one["id"]: one["name"] for one in document["headers"]}
    unions = {
        one["name"]: [headers[i] for i in one["header_ids"]] for one in document["header_unions"]
    }
    names = {one["id"]: one["name"] for one in document["header_unions"]}
    stacks = {
        one["name"]: [each for i in one["header_union_ids"] for each in unions[names[i]]]
        for one in document["header_union_stacks"]
    }
    pairs = [("header_union_stack", "assign_union_stack", stacks, *one)
             for one in itertools.permutations(stacks, 2)]  # fmt: skip
    pairs += [("header_union", "assign_union", unions, *one)
              for one in itertools.permutations(unions, 2)]  # fmt: skip
    for kind, op, wholes, target, source in pairs:
        if source == "alone":  # BMv2 copies old values of fields that nothing computes with
            continue
        members = zip(wholes[target], wholes[source], strict=True)
        parts = [
            {"op": "assign_header", "parameters": [_header(to), _header(of)]} for to, of in members
        ]
        both = [{"type": kind, "value": name} for name in (target, source)]
        for action in document["actions"]:
            whole = {"op": op, "parameters": both}
            action["primitives"] = _replaced(action["primitives"], parts, whole)
    [single] = (one for one in document["parsers"][0]["parse_states"] if one["name"] == "single")
    both = [{"type": "header_union_stack", "value": name} for name in ("copies", "items")]
    copied = {"op": "assign_union_stack", "parameters": both}
    following = [{"type": "union_stack", "value": ["copies", "short"]}]
    single["parser_ops"] += [
        {"op": "primitive", "parameters": [copied]},
        {"op": "extract", "parameters": following},
    ]
    return json.dumps(document, sort_keys=True).encode()


def _replaced(primitives: list[Any], parts: list[Any], whole: Any) -> list[Any]:
    """The primitives with a run of parts as one whole."""
    bare = [{key: one[key] for key in ("op", "parameters")} for one in primitives]
    for at in range(len(bare) - len(parts) + 1):
        if bare[at : at + len(parts)] == parts:
            return [*primitives[:at], whole, *primitives[at + len(parts) :]]
    return primitives


def _stacks(primitives: list[Any]) -> list[Any]:
    """Copies of all elements of a stack are a copy of the stack."""
    copied = [one["parameters"][0]["value"] for one in primitives if one["op"] == "assign_header"]
    if copied != [f"copies[{i}]" for i in range(4)]:
        return [_renamed(one) for one in primitives]
    both = [{"type": "header_stack", "value": name} for name in ("copies", "items")]
    return [{"op": "assign_header_stack", "parameters": both}]


def _renamed(one: Any) -> Any:
    if one["op"] == "mark_to_drop":
        return {**one, "op": "drop", "parameters": []}
    return {**one, "op": NAMES.get(one["op"], one["op"])}


def _jumping(primitives: list[Any], headers: set[str]) -> list[Any]:
    """An action of several primitives does all of them where a field is 0, else the last alone."""
    field = next((one for one in (["v", "z"], ["order", "index"]) if one[0] in headers), None)
    if field is None or len(primitives) < 3:
        return [{"op": "no_op", "parameters": []}, *primitives]
    condition = {"type": "field", "value": field}
    return [
        {"op": "_jump_if_zero", "parameters": [condition, _number(2)]},
        {"op": "_jump", "parameters": [_number(len(primitives) + 1)]},
        *primitives,
    ]


def _compare(conditional: Any) -> None:
    fragment = conditional.get("source_info", {}).get("source_fragment")
    if fragment in COMPARED:
        op, left, right = COMPARED[fragment]
        compared = _call(op, *(_header(one) for one in (left, right)))
        # To BMv2 two headers that are not valid are different (docs/reference/bmv2-differences.md).
        conditional["expression"] = _call("and", _call("valid", None, _header(left)), compared)


def _expression(node: Any) -> Any:
    if isinstance(node, list):
        return [_expression(one) for one in node]
    if not isinstance(node, dict):
        return node
    whole, node = node, {key: _expression(value) for key, value in node.items()}
    if node.get("op") == "*" and all(node[one]["type"] == "field" for one in ("left", "right")):
        # BMv2 ends at a division by zero or of something negative.
        dividend = _call("&", node["left"], _number((1 << 128) - 1))
        divisor = _call("|", _call("&", node["right"], _number(0xFFFF)), _number(1))
        return _call("^", _call("/", dividend, divisor), _call("%", dividend, divisor))["value"]
    if node.get("op") == "last_stack_index":
        return _call("-", {"type": "expression", "value": {**node, "op": "size_stack"}},
                     _number(1))["value"]  # fmt: skip
    if node.get("op") == "d2b" and node["right"].get("value", [])[1:] == ["$valid$"]:
        return _call("valid", None, _header(node["right"]["value"][0]))["value"]
    if node.get("op") in ("assume", "assert"):  # these take numbers, which `valid` is not
        return whole
    return node


def _number(value: int) -> Any:
    return {"type": "hexstr", "value": hex(value)}


def _header(name: str) -> Any:
    return {"type": "header", "value": name}


def _call(op: str, left: Any, right: Any) -> Any:
    return {"type": "expression", "value": {"op": op, "left": left, "right": right}}
