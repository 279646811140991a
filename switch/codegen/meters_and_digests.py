# SPDX-License-Identifier: Apache-2.0
"""Generates C for a program's meters and digests, and for whether it depends on the time."""

from __future__ import annotations

from switch.codegen.expressions import Emitter
from switch.codegen.layout import LIMB, Layout, limbs
from switch.program import expressions as ex
from switch.program.errors import refused_at
from switch.program.model import LearnList


def state_declarations(layout: Layout) -> list[str]:
    """Returns the constants that runtime/program.h asks for."""
    program = layout.program
    sizes = [f"{program.meters[name].size}u" for name in layout.meter_index]
    shapes = {one.name: one for one in program.learn_lists.values()}
    words = [f"{message_words(shapes[name])}" for name in layout.digest_index]
    timed = bool(program.meters or words or any(one.ages for one in program.tables.values()))
    return [
        f"const uint64_t program_meter_sizes[] = {{{', '.join([*sizes, '0'])}}};",
        f"const uint32_t program_digest_words[] = {{{', '.join([*words, '0'])}}};",
        f"const uint32_t program_meter_count = {len(sizes)};",
        f"const uint32_t program_digest_count = {len(words)};",
        f"const int program_uses_time = {int(timed)};",
    ]


def message_words(learn_list: LearnList) -> int:
    """Returns the 64-bit words of a digest's message; each field begins a new one."""
    return sum(limbs(one.width) for one in learn_list.elements)


def learn_function(layout: Layout) -> list[str]:
    """Returns the function that makes a message of a packet's fields."""
    lines = [
        "void program_learn(struct sw *sw, struct program_context *c, uint32_t list) {",
        "    (void)sw, (void)c;",
        "    switch (list) {",
    ]
    for one in layout.program.learn_lists.values():
        with refused_at(one.source, f"digest '{one.name}'"):
            lines += [f"    case {one.id}: {{", *_message(layout, one), "        break;", "    }"]
    return [*lines, "    default:", "        break;", "    }", "}", ""]


def _message(layout: Layout, one: LearnList) -> list[str]:
    out = Emitter(layout)
    index = layout.digest_index[one.name]
    out.emit(f"uint64_t message[{message_words(one) or 1}];")
    at = 0
    for element in one.elements:
        if element.width <= LIMB:
            unsigned = ex.FieldValue(element.header, element.field, element.width, False)
            out.emit(f"message[{at}] = {out.narrow(unsigned)};")
        else:
            size = limbs(element.width)
            out.emit(f"memcpy(&message[{at}], {out.field(element)}, {8 * size});")
        at += limbs(element.width)
    out.emit(f"sw_digest_add(sw, {index}, message);")
    return out.lines
