# SPDX-License-Identifier: Apache-2.0
"""Makes ctypes structures of those that a C header declares, so that each is declared once.

It reads the C that ``hosts/native/*.h`` have: fields of fixed-width integers, double, bool,
pointers, and structures declared before, several of a type on one line.
"""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path

_HERE = Path(__file__).parent
_NUMBERS = {
    "int8_t": ctypes.c_int8,
    "uint8_t": ctypes.c_uint8,
    "int16_t": ctypes.c_int16,
    "uint16_t": ctypes.c_uint16,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "double": ctypes.c_double,
    "bool": ctypes.c_bool,
}
_STRUCTURE = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"\s*(?:const\s+)?(?:struct\s+)?(\w+)\s+([^;]+);")


@functools.cache
def structures(header: str) -> dict[str, type[ctypes.Structure]]:
    """Returns the structures of a header beside this file, by name.

    Raises ValueError, with the structure and the field, for a type that it does not know.
    """
    text = re.sub(r"//[^\n]*", "", (_HERE / header).read_text(encoding="utf-8"))
    made: dict[str, type[ctypes.Structure]] = {}
    for name, body in _STRUCTURE.findall(text):
        fields: list[tuple[str, type]] = []
        for kind, names in _FIELD.findall(body):
            for one in (name.strip() for name in names.split(",")):
                if one.startswith("*"):
                    fields.append((one.lstrip("*"), ctypes.c_void_p))
                elif kind in _NUMBERS:
                    fields.append((one, _NUMBERS[kind]))
                elif kind in made:
                    fields.append((one, made[kind]))
                else:
                    raise ValueError(f"{header}: struct {name}: {one} has the type {kind}")
        made[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return made
