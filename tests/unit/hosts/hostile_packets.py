# SPDX-License-Identifier: Apache-2.0
"""Mutates valid packets into ones with invalid fields. Seeded."""

from __future__ import annotations

import random
from collections.abc import Collection

from protocol.header import HEADER, HEADER_BYTES

# Offset and size of every field.
FIELDS = {
    name: (offset, dtype.itemsize)
    for name, (dtype, offset) in (
        (name, HEADER.fields[name][:2])  # type: ignore[index]
        for name in HEADER.names or ()
    )
}


def mutated(datagram: bytes, draw: random.Random, keep: Collection[str] = ()) -> bytes:
    """One to three fields changed but for those to `keep`, sometimes the payload, rarely the
    length. Not payload and checksum together: a sum does not see two changes that cancel out."""
    data = bytearray(datagram)
    names = [name for name in FIELDS if name not in keep]
    chosen = draw.sample(names, draw.choice([1, 1, 1, 2, 3]))
    for name in chosen:
        at, size = FIELDS[name]
        data[at : at + size] = _value(int.from_bytes(data[at : at + size], "big"), size, draw)
    if len(data) > HEADER_BYTES and "checksum" not in chosen and draw.random() < 0.2:
        at = draw.randrange(HEADER_BYTES, len(data))
        data[at] ^= 1 << draw.randrange(8)
    kind = draw.random()
    if kind < 0.03:
        del data[draw.randrange(len(data)) :]
    elif kind < 0.06:
        data += draw.randbytes(draw.randrange(1, 64))
    return bytes(data)


def _value(old: int, size: int, draw: random.Random) -> bytes:
    top = 1 << (8 * size)
    value = draw.choice(
        [
            draw.randrange(top),
            (old + draw.choice([-2, -1, 1, 2])) % top,
            old ^ 1 << draw.randrange(8 * size),
            0,
            top - 1,
        ]
    )
    return value.to_bytes(size, "big")
