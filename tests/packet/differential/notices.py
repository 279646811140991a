# SPDX-License-Identifier: Apache-2.0
"""Differential cases of meters and digests. Meter rates are 0, so colors depend on bursts only."""

from __future__ import annotations

import random
from collections.abc import Iterator

from controller.p4rt.entries import P4Info, insertion, modification
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.p4 import HERE
from tests.packet.differential.case import Case, program_files
from tests.packet.differential.entries import entries, frame

_LONG_NS = 3_600_000_000_000


def _config(rng: random.Random, tokens: int) -> p4rt.MeterConfig:
    """Bursts for some of the packets that come, of `tokens` each."""
    cburst, pburst = (rng.randrange(8 * tokens) for _ in range(2))
    return p4rt.MeterConfig(cburst=cburst, pburst=pburst)


def metered() -> Iterator[Case]:
    rng = random.Random(901)
    text, p4info = program_files(HERE / "metered.json")
    updates = entries(p4info, 902, count=12)
    for update in updates:
        entry = update.entity.table_entry
        if rng.random() < 0.8 and not entry.is_default_action:
            name = _name(p4info, entry.table_id)
            entry.meter_config.CopyFrom(_config(rng, 1 if name == "Enter.hosts" else 40))
    for meter in p4info.message.meters:
        for index in rng.sample(range(8), 6):
            entity = p4rt.Entity()
            entity.meter_entry.meter_id = meter.preamble.id
            entity.meter_entry.index.index = index
            entity.meter_entry.config.CopyFrom(
                _config(rng, 4 if "packets" in meter.preamble.name else 150)
            )
            updates.append(modification(entity))
    frames = [
        frame(rng, [8, 8, 8, 8, 8, 8, 8]) + rng.randbytes(rng.randrange(60)) for _ in range(200)
    ]
    arrivals = [(rng.randrange(8), one) for one in frames]
    yield Case("metered", text, p4info, updates, arrivals)
    # Meters without rates are green for all; without entries none runs.
    yield Case("metered-without-rates", text, p4info, entries(p4info, 903), arrivals[:40])
    yield Case("metered-empty", text, p4info, [], arrivals[:20])


def _name(p4info: P4Info, table: int) -> str:
    return next(str(one.preamble.name) for one in p4info.message.tables if one.preamble.id == table)


def learned() -> Iterator[Case]:
    rng = random.Random(911)
    text, p4info = program_files(HERE / "learning.json")
    digests = []
    for digest in p4info.message.digests:
        entity = p4rt.Entity()
        entity.digest_entry.digest_id = digest.preamble.id
        entity.digest_entry.config.max_list_size = 1
        entity.digest_entry.config.max_timeout_ns = _LONG_NS
        entity.digest_entry.config.ack_timeout_ns = _LONG_NS
        digests.append(insertion(entity))
    frames = [frame(rng, [48, 48, 16]) + rng.randbytes(rng.randrange(9)) for _ in range(120)]
    arrivals = [(rng.randrange(8), one) for one in frames]
    known = entries(p4info, 912, count=2)
    yield Case("learning", text, p4info, [*digests, *known], arrivals)
    # Nothing is learned without a subscriber.
    yield Case("learning-unasked", text, p4info, known, arrivals[:30])
