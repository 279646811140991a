# SPDX-License-Identifier: Apache-2.0
"""Feeds a program random, damaged and cut frames under the sanitizers of the C compiler.

Run as a process of its own, with the sanitizer's library preloaded: a read past a buffer ends it.

    python -m tests.p4.fuzz PROGRAM.json SEED COUNT
"""

from __future__ import annotations

import random
import sys
from contextlib import suppress

from switch.compile import FLAGS
from switch.keys import KeyElement
from switch.pipeline import EntryExists, Pipeline, PipelineError, TableFull
from switch.program import KeyField, Program

SANITIZE = (
    *(one for one in FLAGS if not one.startswith(("-O", "-march"))),
    "-O1",
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)

# Beginnings that get far into usual parsers: IPv4 and UDP to port 47110, both under Ethernet.
HEADS = [
    "020000000001020000000002080045000428000040004011000000000a0000010a000002b806b80604140000",
    "02000000000102000000000288b50103000000000000",
    "10008847000051000000410900",
    "",
]


def element(rng: random.Random, key: KeyField) -> KeyElement:
    value = rng.choice([0, 1, rng.getrandbits(key.width), (1 << key.width) - 1])
    value &= (1 << key.width) - 1
    if key.match == "exact":
        return value
    if key.match == "lpm":
        return value, rng.randrange(key.width + 1)
    if key.match == "range":
        return 0, value
    return value, rng.choice([0, (1 << key.width) - 1])


def fill(pipeline: Pipeline, rng: random.Random) -> None:
    """Random entries in every table, groups and sessions for every small number."""
    for table in pipeline.program.tables.values():
        if not table.key or table.entries_are_const:
            continue
        for _ in range(40):
            action = pipeline.program.actions[rng.choice(table.action_ids)]
            args = [rng.getrandbits(min(one.width, 4)) for one in action.parameters]
            key = [element(rng, one) for one in table.key]
            try:
                handle = pipeline.insert(table.name, key, action.name, args, rng.randrange(1, 9))
            except (EntryExists, TableFull):
                continue
            if rng.random() < 0.3:
                pipeline.delete(table.name, handle)
    for number in range(1, 8):
        replicas = [(port, number) for port in range(number)]
        pipeline.set_multicast_group(number, replicas)
        pipeline.set_clone_session(number, replicas, rng.choice([0, 1, 60]))


def frame(rng: random.Random) -> bytes:
    data = bytearray(bytes.fromhex(rng.choice(HEADS)))
    data += rng.randbytes(rng.choice([0, 3, 40, 300, 1100]))
    for _ in range(rng.choice([0, 0, 1, 4])):
        if data:
            data[rng.randrange(len(data))] = rng.choice([0, 1, 0xFF, rng.randrange(256)])
    return bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.5 else data)


def main(path: str, seed: int, count: int) -> None:
    rng = random.Random(seed)
    with Pipeline(Program.load(path), pool=32, flags=SANITIZE) as pipeline:
        fill(pipeline, rng)
        for _ in range(count):
            frames = [frame(rng) for _ in range(20)]
            with suppress(PipelineError):  # random entries may send a packet round for ever
                pipeline.inject_batch([rng.randrange(8) for _ in frames], frames)
        pipeline.inject(1, bytes(20000))
        print(pipeline.stats())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
