# SPDX-License-Identifier: Apache-2.0
"""Tests expressions of every operator and width against integer arithmetic.

Random expression trees are put into the action of a one-action program (as p4c writes it), run on
random packets, and compared with Python's integers: BMv2's definition of its expressions.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from switch.loader import read_program
from switch.pipeline import Pipeline

Json = dict[str, Any]

# (name, width, signed), together whole bytes; the results' widths likewise.
INPUTS = [
    ("a", 1, False), ("b", 7, False), ("c", 8, False), ("d", 13, False), ("e", 19, False),
    ("f", 32, False), ("g", 64, False), ("h", 65, False), ("i", 127, False), ("j", 256, False),
    ("k", 2048, False), ("l", 8, True), ("m", 33, True), ("n", 64, True), ("o", 71, True),
    ("p", 200, True),
]  # fmt: skip
RESULTS = [1, 3, 8, 12, 32, 33, 63, 64, 65, 128, 130, 256, 2048, 2048, 501, 8]
SIGNED_RESULTS = [8, 33, 64, 129, 200, 6]

# Where edges of carries and signs are.
CORNERS = [0, 1, 2, 0x7F, 0x80, 0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
           1 << 64, (1 << 127) + 1, (1 << 2048) - 1]  # fmt: skip


def expression(op: str, left: Json | None, right: Json | None) -> Json:
    return {"type": "expression", "value": {"op": op, "left": left, "right": right}}


def constant(value: int) -> Json:
    return {"type": "hexstr", "value": f"{'-' if value < 0 else ''}0x{abs(value):x}"}


class Trees:
    """Random expressions with a Python function that evaluates each."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def data(self, depth: int) -> Json:
        pick = self.random.random()
        if depth == 0 or pick < 0.15:
            return self.leaf()
        if pick < 0.55:
            op = self.random.choice(["+", "-", "*", "&", "|", "^"])
            return expression(op, self.data(depth - 1), self.data(depth - 1))
        if pick < 0.62:
            return expression("~", None, self.data(depth - 1))
        if pick < 0.74:
            return expression(self.random.choice(["<<", ">>"]), self.data(depth - 1), self.shift())
        if pick < 0.82:
            return expression(
                self.random.choice(["/", "%"]), self.unsigned(depth - 1), self.unsigned(depth - 1)
            )
        if pick < 0.92:
            op = self.random.choice(["two_comp_mod", "sat_cast", "usat_cast"])
            width = self.random.choice([2, 8, 31, 32, 33, 64, 65, 128, 300])
            return expression(op, self.data(depth - 1), constant(width))
        if pick < 0.96:
            return expression("b2d", None, self.boolean(depth - 1))
        choice = expression("?", self.data(depth - 1), self.data(depth - 1))
        choice["value"]["cond"] = self.boolean(depth - 1)
        return choice

    def boolean(self, depth: int) -> Json:
        pick = self.random.random()
        if depth == 0 or pick < 0.2:
            return expression("d2b", None, self.leaf())
        if pick < 0.7:
            op = self.random.choice(["==", "!=", "<", "<=", ">", ">="])
            left = self.data(depth - 1)
            right = left if self.random.random() < 0.15 else self.data(depth - 1)
            return expression(op, left, right)
        if pick < 0.9:
            op = self.random.choice(["and", "or"])
            return expression(op, self.boolean(depth - 1), self.boolean(depth - 1))
        return expression("not", None, self.boolean(depth - 1))

    def leaf(self) -> Json:
        if self.random.random() < 0.25:
            value = self.random.choice(CORNERS)
            return constant(-value if self.random.random() < 0.2 else value)
        return {"type": "field", "value": ["in", self.random.choice(INPUTS)[0]]}

    def shift(self) -> Json:
        if self.random.random() < 0.7:
            return constant(self.random.choice([0, 1, 31, 32, 63, 64, 65, 127, 128, 200]))
        return {"type": "field", "value": ["in", self.random.choice("abc")]}

    def unsigned(self, depth: int) -> Json:
        mask = constant((1 << self.random.choice([8, 32, 64, 65, 128, 300])) - 1)
        return expression("&", self.data(depth), mask)


def wrap(value: int, width: int, signed: bool) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if signed and value >> (width - 1) else value


def evaluate(node: Json, fields: dict[str, int]) -> int:
    """What BMv2's definition gives, in Python's unbounded integers."""
    if node["type"] == "hexstr":
        return int(node["value"], 16)
    if node["type"] == "field":
        return fields[node["value"][1]]
    value = node["value"]
    op, left, right = value["op"], value["left"], value["right"]
    if op == "?":
        return evaluate(left if evaluate(value["cond"], fields) else right, fields)
    b = evaluate(right, fields)
    if left is None:
        return {"~": ~b, "not": int(not b), "d2b": int(b != 0), "b2d": b}[op]
    a = evaluate(left, fields)
    if op in ("/", "%"):  # undefined by zero: this target says 0
        return 0 if b == 0 else a // b if op == "/" else a % b
    if op == "two_comp_mod":
        return wrap(a, b, True)
    if op == "sat_cast":
        return max(-(1 << (b - 1)), min((1 << (b - 1)) - 1, a))
    if op == "usat_cast":
        return max(0, min((1 << b) - 1, a))
    return int(
        {
            "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "&": lambda: a & b,
            "|": lambda: a | b, "^": lambda: a ^ b, "<<": lambda: a << b, ">>": lambda: a >> b,
            "==": lambda: a == b, "!=": lambda: a != b, "<": lambda: a < b,
            "<=": lambda: a <= b, ">": lambda: a > b, ">=": lambda: a >= b,
            "and": lambda: a and b, "or": lambda: a or b,
        }[op]()
    )  # fmt: skip


def document(results: list[tuple[str, int, bool]], assignments: list[tuple[str, Json]]) -> Json:
    """A program, as p4c writes it, that parses `in` and `out`, computes, and sends both back."""
    standard = [["ingress_port", 9], ["egress_spec", 9], ["egress_port", 9], ["instance_type", 32],
                ["packet_length", 32], ["_pad", 5]]  # fmt: skip
    table = {
        "name": "compute", "id": 0, "key": [], "match_type": "exact", "type": "simple",
        "max_size": 1, "with_counters": False, "support_timeout": False, "direct_meters": None,
        "action_ids": [0], "actions": ["compute"], "base_default_next": None,
        "next_tables": {"compute": None},
        "default_entry": {"action_id": 0, "action_const": True, "action_data": [],
                          "action_entry_const": True},
    }  # fmt: skip
    primitives = [
        {
            "op": "assign",
            "parameters": [
                {"type": "field", "value": ["out", name]},
                {"type": "expression", "value": tree},
            ],
        }
        for name, tree in assignments
    ]
    extract = [
        {"op": "extract", "parameters": [{"type": "regular", "value": name}]}
        for name in ("in", "out")
    ]
    control = {"name": "egress", "id": 1, "init_table": None, "tables": [], "conditionals": []}
    return {
        "__meta__": {"version": [2, 23]},
        "header_types": [
            {"name": "standard", "id": 0, "fields": standard},
            {"name": "in_t", "id": 1, "fields": INPUTS},
            {"name": "out_t", "id": 2, "fields": results},
        ],
        "headers": [
            {"name": "standard_metadata", "id": 0, "header_type": "standard", "metadata": True},
            {"name": "in", "id": 1, "header_type": "in_t", "metadata": False},
            {"name": "out", "id": 2, "header_type": "out_t", "metadata": False},
        ],
        "parsers": [{"name": "parser", "id": 0, "init_state": "start", "parse_states": [{
            "name": "start", "id": 0, "parser_ops": extract, "transition_key": [],
            "transitions": [{"type": "default", "value": None, "mask": None, "next_state": None}],
        }]}],
        "deparsers": [{"name": "deparser", "id": 0, "order": ["in", "out"]}],
        "actions": [{"name": "compute", "id": 0, "runtime_data": [], "primitives": primitives}],
        "pipelines": [
            {"name": "ingress", "id": 0, "init_table": "compute", "tables": [table],
             "conditionals": []},
            control,
        ],
        **{one: [] for one in (
            "field_lists", "errors", "enums", "counter_arrays", "register_arrays",
            "calculations", "checksums",
        )},
    }  # fmt: skip


def pack(fields: list[tuple[str, int, bool]], values: dict[str, int]) -> bytes:
    bits = 0
    for name, width, _ in fields:
        bits = bits << width | values.get(name, 0) & ((1 << width) - 1)
    size = sum(width for _, width, _ in fields)
    assert size % 8 == 0
    return bits.to_bytes(size // 8, "big")


def unpack(fields: list[tuple[str, int, bool]], data: bytes) -> dict[str, int]:
    bits, place, values = int.from_bytes(data, "big"), 8 * len(data), {}
    for name, width, _ in fields:
        place -= width
        values[name] = bits >> place & ((1 << width) - 1)
    return values


def choose(trees: Trees) -> tuple[list[tuple[str, int, bool]], list[tuple[str, Json]]]:
    """Result fields of all widths, whole bytes together, and an expression for each."""
    results = [(f"r{i}", width, False) for i, width in enumerate(RESULTS)]
    results += [(f"s{i}", width, True) for i, width in enumerate(SIGNED_RESULTS)]
    assignments = [(name, trees.data(4)) for name, _, _ in results]
    padding = -sum(width for _, width, _ in results) % 8 + 8
    return [*results, ("pad", padding, False)], assignments


@pytest.mark.parametrize("seed", [101, 106, 117])
def test_random_expressions(seed: int) -> None:
    trees = Trees(seed)
    results, assignments = choose(trees)
    program = read_program(document(results, assignments), "expressions")
    with Pipeline(program, pool=4) as pipeline:
        header = pack(INPUTS, {})
        for _ in range(60):
            values = {}
            for name, width, signed in INPUTS:
                value = trees.random.choice(
                    [trees.random.getrandbits(width), trees.random.choice(CORNERS), -1]
                )
                values[name] = wrap(value, width, signed)
            frame = pack(INPUTS, values) + pack(results, {})
            [(_, out)] = pipeline.inject(1, frame)
            got = unpack(results, out[len(header) :])
            for (name, width, _), (_, tree) in zip(results, assignments, strict=False):
                expected = evaluate(tree, values) & ((1 << width) - 1)
                assert got[name] == expected, f"{name}:{width} = {tree} of {values}"
