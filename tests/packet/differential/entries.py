# SPDX-License-Identifier: Apache-2.0
"""Random table entries, groups and sessions for any program, and values shared with packets so
that some of them match."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable

from controller.p4rt.entries import MatchValue, P4Info, insertion, modification
from switch.p4runtime.stubs import p4info_pb2
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt

Match = p4info_pb2.MatchField
REPLICA_PORTS = range(1, 8)
_SHARED = 0x9E3779B97F4A7C15F39CC0605CEDC8341082276BF3A27251F86C6A11D0C18E95


def values(width: int) -> list[int]:
    """Values of a field that entries and packets have in common."""
    everything = (1 << width) - 1
    middle = 1 << (width - 1)
    return [0, 1, everything, middle, _SHARED & everything, (_SHARED >> 7) & everything]


def drawn(rng: random.Random, width: int) -> int:
    """A field's value for a packet: most often one of `values`."""
    return rng.choice(values(width)) if rng.random() < 0.8 else rng.getrandbits(width)


def frame(rng: random.Random, widths: Iterable[int]) -> bytes:
    """A header of fields of these widths, whole bytes together, drawn."""
    bits = total = 0
    for width in widths:
        bits, total = bits << width | drawn(rng, width), total + width
    assert total % 8 == 0
    return bits.to_bytes(total // 8, "big")


def _match(rng: random.Random, field: p4info_pb2.MatchField) -> MatchValue | None:
    width = int(field.bitwidth) or 1
    everything = (1 << width) - 1
    value = drawn(rng, width)
    if field.match_type == Match.EXACT:
        return value
    if field.match_type == Match.LPM:
        length = rng.choice([width, rng.randrange(1, width + 1), rng.randrange(1, width + 1)])
        return value & everything << (width - length) & everything, length
    if field.match_type == Match.TERNARY:
        mask = rng.choice([everything, everything >> width // 2, rng.getrandbits(width), 0])
        return (value & mask, mask) if mask else None
    if field.match_type == Match.RANGE:
        low, high = sorted((value, drawn(rng, width)))
        return None if (low, high) == (0, everything) else (low, high)
    return value if rng.random() < 0.7 else None  # optional


def entries(
    p4info: P4Info, seed: int, count: int = 24, empty: Collection[str] = ()
) -> list[p4rt.Update]:
    """Random entries for every table that takes any but those named, and default actions."""
    rng = random.Random(seed)
    updates: list[p4rt.Update] = []
    actions = {one.preamble.id: one for one in p4info.message.actions}
    for table in p4info.message.tables:
        name = table.preamble.name
        fixed = table.is_const_table or table.has_initial_entries
        if name in empty or fixed:
            continue
        scopes = [(actions[ref.id], ref.scope) for ref in table.action_refs]
        chosen: list[p4rt.Update] = []
        keys: set[bytes] = set()
        for number in range(min(count, table.size) if table.match_fields else 0):
            action = rng.choice([a for a, scope in scopes if scope != 2])  # DEFAULT_ONLY
            match = {one.name: _match(rng, one) for one in table.match_fields}
            ordered = any(
                one.match_type not in (Match.EXACT, Match.LPM) for one in table.match_fields
            )
            entity = p4info.table_entry(
                name,
                {field: value for field, value in match.items() if value is not None},
                action.preamble.name,
                _arguments(rng, action),
                number + 1 if ordered else 0,
            )
            key = b"".join(sorted(one.SerializeToString() for one in entity.table_entry.match))
            if key not in keys:
                keys.add(key)
                chosen.append(insertion(entity))
        rng.shuffle(chosen)
        updates += chosen
        if not table.const_default_action_id and rng.random() < 0.5:
            action = rng.choice([a for a, scope in scopes if scope != 1])  # TABLE_ONLY
            given = _arguments(rng, action)
            key = {one.name: 0 for one in table.match_fields if one.match_type == Match.EXACT}
            entity = p4info.table_entry(name, key, action.preamble.name, given)
            entity.table_entry.ClearField("match")
            entity.table_entry.is_default_action = True
            updates.append(modification(entity))
    return updates


def _arguments(rng: random.Random, action: p4info_pb2.Action) -> dict[str, int]:
    return {
        one.name: rng.choice(REPLICA_PORTS)
        if one.name == "port"
        else rng.randrange(1, 8)
        if one.name == "group"
        else drawn(rng, one.bitwidth)
        for one in action.params
    }


def replication(seed: int, numbers: Iterable[int] = range(1, 6)) -> list[p4rt.Update]:
    """Groups and sessions of these numbers, each to ports of its own choice. No session cuts its
    copies: BMv2's P4Runtime refuses such."""
    rng = random.Random(seed)
    updates = []
    for number in numbers:
        group, session = p4rt.Entity(), p4rt.Entity()
        engine = group.packet_replication_engine_entry.multicast_group_entry
        engine.multicast_group_id = number
        mirror = session.packet_replication_engine_entry.clone_session_entry
        mirror.session_id = number
        for entry in (engine, mirror):
            for port in sorted(rng.sample(REPLICA_PORTS, rng.randrange(1, 4))):
                entry.replicas.add(egress_port=port, instance=rng.randrange(1, 1 << 16))
        updates += [insertion(group), insertion(session)]
    return updates
