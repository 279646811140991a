# SPDX-License-Identifier: Apache-2.0
"""Tests each field of each job service call with invalid values: rejected with the field's name
while another job's chunks are in flight."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from controller.jobs.requests import LONGEST_KEY_NAME, MOST_CHUNKS, MOST_KEYS, MOST_NAME_CHARACTERS
from tests.packet.controller.hostile_service import (
    BAD_OPTIMIZERS,
    LONGEST_TEXT,
    METHODS,
    MOST,
    OPTIMIZER,
    OWN_CHUNKS,
    PAYLOAD,
    SERVER,
    WORKER,
    Scene,
    keys,
    other_processes,
    results,
    right,
    scene,
)

Values = Callable[[Scene], list[Any]]
SERVER_TIMES = {"seconds": 1.0, "sums": 3, "handled": 0.5, "queued": 0.25}


def nonces(s: Scene) -> list[Any]:
    mine = s.victim.job.nonce
    return ["", "0" * 32, mine[:-1], mine + "0", mine.upper(), "ü", "x" * 10**6, s.own.nonce + "\0"]


def members(hosts: list[str], others: list[str]) -> list[Any]:
    """Lists of members that cannot be, where `hosts` would be right."""
    right = [{"host": host, "rank": rank} for rank, host in enumerate(hosts)]
    return [
        [],
        [{"host": "w9", "rank": 0}],
        [{"host": "core0", "rank": 0}],
        [{"host": "x" * 10**6, "rank": 0}],
        [{"host": "\0", "rank": 0}],
        [{"rank": 0}],
        [{"host": hosts[0], "rank": 1}],
        [{"host": hosts[0], "rank": MOST}],
        [*right, {"host": others[0], "rank": 0}],
        [*right, {"host": hosts[0], "rank": len(hosts)}],
        [{"host": hosts[0], "rank": rank} for rank in range(5)],
        [{"host": hosts[0], "rank": rank} for rank in range(5_000)],
    ]


BAD_RESULTS = [
    results(1, chunk=OWN_CHUNKS),
    results(1, chunk=MOST),
    results(0),
    results(1, header=0),
    results(1, header=31),
    results(1, header=33),
    results(1, payload=1),
    results(1, payload=PAYLOAD + 1),
]
WHO: dict[str, Values] = {
    "nonce": nonces,
    "role": lambda _: [0, 3, -1, (1 << 31) - 1],
    "rank": lambda _: [2, MOST],
}
# Of each call and each of its fields, values that it must be refused for when all others are right.
# A call, or a field, that is not here fails the test below.
WRONG: dict[str, dict[str, Values]] = {
    "CreateService": {
        "namespace": lambda _: [
            "",
            "a b",
            "x" * 64,
            "ü",
            "\0",
            "-x",
            "a/b",
            "a\n",
            "x" * 10**6,
            "victim",
        ],
        "workers": lambda _: [
            *members(["w3", "w4"], ["w0"]),
            [{"host": "w3", "rank": 0, "spare": True}],
        ],
        "servers": lambda _: [
            *members(["s1"], ["s0"]),
            [{"host": "s1", "rank": 0, "spare": True}],
            # The root of its tree is a switch.
            [{"host": "s0", "rank": 0}, {"host": "s1", "rank": 1, "spare": True}],
        ],
        "tree": lambda _: [0, 7, -1, (1 << 31) - 1],
        "window": lambda _: [3, 1 << 16, MOST],
        "streams": lambda _: [257, MOST],
        "lease": lambda _: [math.nan, math.inf, -math.inf, -1.0, 4.9, 86401.0, 1e-30],
        "admission": lambda _: [2, -1, (1 << 31) - 1],
        "slice_bytes": lambda _: [(64 << 20) + 1, MOST],
        "pipeline": lambda _: [
            {"kind": "square"},
            {"kind": "x" * 10**6},
            {"kind": "wide"},  # the root of its tree is a switch
            {"ablated": ["aggregation"]},  # switches sum
            {"ablated": ["everything"]},
        ],
        "propagation": lambda _: [
            {"order": "x" * 10**6},
            {"order": "a b"},
            {"classes": 129},
            {"classes": MOST},
            {"classes": 9, "in_network": True, "assign": "nowhere"},
            {"release": "never"},
            {"release": "slice"},  # the root of its tree is a switch
            {"credit": (1 << 64) - 1},
        ],
        "balance": lambda _: [
            {"policy": "x" * 10**6},
            {"policy": "best"},
            {"explore": math.nan},
            {"explore": -0.1},
            {"explore": math.inf},
        ],
    },
    "ConnectService": {
        **WHO,
        "address": lambda s: [
            None,
            {"ipv4": 0, "port": 50000},
            {"ipv4": MOST, "port": 50000},
            {"ipv4": int(s.network.addressing.address("w0")), "port": 50000},
            {**s.address(WORKER, 0), "port": 0},
            {**s.address(WORKER, 0), "port": 65536},
            {**s.address(WORKER, 0), "port": MOST},
            {**s.address(WORKER, 0), "port": 50077},  # it is connected from another one
        ],
        "process": other_processes,  # it has not been reported as joinable
    },
    "InitService": {
        "nonce": nonces,
        "rank": WHO["rank"],
        "keys": lambda _: [
            [],
            keys(0),
            keys((1 << 64) - 1),
            keys(1 << 63, 1 << 63),  # their sum is 0 in 64 bits
            keys(256 * MOST_CHUNKS, 1),
            keys(*[1] * (MOST_KEYS + 1)),
            keys(255),  # others have three chunks
            [*keys(256), *keys(256)],
            [{"key": 0, "name": "x" * (LONGEST_KEY_NAME + 1), "elements": 1}],
            [{"key": 0, "name": "\x1b[2J" * 9, "elements": 768}],
            [
                {"key": key, "name": "x" * LONGEST_KEY_NAME, "elements": 1}
                for key in range(MOST_NAME_CHARACTERS // LONGEST_KEY_NAME + 1)
            ],
        ],
        "process": other_processes,
        # It may give it or not.
        "gives_state": lambda _: [],
        # More of them, where one would be right, in a test of their own.
        "optimizer": lambda _: [
            *({**OPTIMIZER, **bad} for bad in BAD_OPTIMIZERS),
            OPTIMIZER,  # others have none
        ],
    },
    "Watch": {**WHO, "process": other_processes},
    "Resync": {
        **WHO,
        "process": other_processes,
        # Of another epoch, and so ignored: see the test of answers that are.
        "epoch": lambda _: [],
        "report": lambda _: [],
        "handed": lambda _: [
            *({"results": bad} for bad in BAD_RESULTS),
            {"last": True},  # without what was asked for
            {"results": results(2), "last": True},
            {"results": results(1, chunk=0), "last": True},
        ],
        "taken": lambda _: [],
        "broken": lambda _: [{"chunk": OWN_CHUNKS}, {"chunk": MOST, "reason": "x" * 10**6}],
        # Nobody has asked for them, and so ignored: see the test of answers that are.
        "fetched": lambda _: [],
        "begun": lambda _: [],
        "reached": lambda _: [],
        "donated": lambda _: [],
        "restored": lambda _: [],
        "remapped": lambda _: [],
        "measured": lambda _: [
            {"sums": [1] * 9, "waited": [0.0] * 9, "ended": [0.0] * 9},
            {"sums": [1], "waited": [], "ended": []},
            {"seconds": math.nan},
            {"seconds": -1.0},
            {"round": MOST, "seconds": math.inf},
            {"sent": math.nan},
        ],
        # Of a worker; a server's in a test of their own.
        "server_measured": lambda _: [{}, SERVER_TIMES],
        "moved_here": lambda _: [{}, {"number": 1, "chunks": 1, "bytes": 1}],
    },
    "Heartbeat": {
        **WHO,
        "epoch": lambda s: [s.own.epoch + 1, 65536, MOST],
        "unanswered": lambda _: [math.nan, math.inf, -math.inf, -1.0],
        "process": other_processes,
        # What it waits for is shown to users, if the job ends meanwhile.
        "awaited": lambda _: [],
        "awaited_key": lambda _: [],
    },
    "Leave": {
        **WHO,
        # It may give up, in as many words as it likes: see the test of reasons.
        "reason": lambda _: [],
        "results": lambda _: [*BAD_RESULTS, results(2), results(MOST)],
        "levels": lambda _: [
            b"\1",
            bytes(4 * OWN_CHUNKS - 1),
            bytes(4 * OWN_CHUNKS + 4),
            b"x" * 10**6,
        ],
        # One that is not in any more may say so, and removes no other member.
        "process": lambda _: [],
        "others_go_on": lambda _: [],  # or not: only who waits for whom depends on it
    },
    # It may have ended in any way: see the test of reasons.
    "Gone": {**WHO, "reason": lambda _: []},
    "Enrol": {
        "nonce": nonces,
        "host": lambda _: ["", "w99", "tor0", "\0", "\x1b[2J", "x" * 10**6],
    },
    "Scale": {
        "nonce": nonces,
        "added": lambda _: [
            [],
            [""],
            ["s0"],
            ["w3"],
            ["core0"],
            ["\0"],
            ["\x1b[2J"],
            ["x" * 10**6],
            ["s1", "s1"],
            ["s1"] * 10**6,
            ["x"] * 10**6,
        ],
        "removed": lambda _: [["s1"], ["s0"], ["s1.0"], ["\x1b" * 10**6]],
    },
    "Status": {},
}


@pytest.mark.parametrize("name", METHODS)
def test_every_field_of_every_call_is_checked(name: str) -> None:
    """A new call, or field, needs values here that it is to be refused for."""
    method = METHODS[name].input_type
    assert name in WRONG, f"{name} has no hostile values"
    assert WRONG[name].keys() == set(method.fields_by_name), "fields without hostile values"
    with scene() as s:
        if name == "Resync":
            s.own = s.changing()
        job = s.own
        before = job.state, job.epoch, job.keys, set(job.members), s.table.resources
        used = {n: budget.used for n, budget in s.table.resources.budgets.items()}
        for field, values in WRONG[name].items():
            for value in values(s):
                fields = {**right(s, name), field: value}
                if name == "Resync" and (field in WHO or field == "process"):
                    fields["taken"] = {"page": 0}
                code, text = s.attempt(name, method._concrete_class(**fields))
                expected = {"nonce": "PERMISSION_DENIED", "process": "ABORTED"}.get(
                    field, "INVALID_ARGUMENT"
                )
                taken = (
                    value == "victim"
                    or (field == "address" and (value or {}).get("port") == 50077)
                    or (name == "ConnectService" and field == "process")
                )
                assert code == ("ALREADY_EXISTS" if taken else expected), (field, value, text)
                assert 0 < len(text) <= LONGEST_TEXT
                assert "\x1b" not in text
                s.pass_time()
        after = job.state, job.epoch, job.keys, set(job.members), s.table.resources
        assert after == before
        assert used == {n: budget.used for n, budget in s.table.resources.budgets.items()}
        s.finish()


def test_every_field_of_what_has_moved_to_a_server_is_checked() -> None:
    """A new field needs values here that it is to be refused for."""
    message = METHODS["Resync"].input_type
    wrong: dict[str, list[Any]] = {
        "number": [],  # one that is not known is ignored
        "chunks": [1 << 53, (1 << 64) - 1],
        "bytes": [1 << 53, (1 << 64) - 1],
        "seconds": [math.nan, math.inf, -math.inf, -1.0, 1e9],
    }
    assert wrong.keys() == set(message.fields_by_name["moved_here"].message_type.fields_by_name)
    with scene() as s:
        who = {"nonce": s.own.nonce, "role": SERVER, "rank": 0, "epoch": s.own.epoch}
        for field, values in wrong.items():
            for value in values:
                moved = {"number": 1, "chunks": 1, "bytes": 1024, "seconds": 1.0, field: value}
                request = message._concrete_class(**who, moved_here=moved)
                code, text = s.attempt("Resync", request)
                assert code == "INVALID_ARGUMENT", (field, value, text)
                assert 0 < len(text) <= LONGEST_TEXT
        s.call("Resync", **who, moved_here={"number": 1, "chunks": 1, "bytes": 1024})
        assert s.own.moves == []


def test_every_field_of_a_servers_times_is_checked() -> None:
    """A new field needs values here that it is to be refused for."""
    seconds, counts = [math.nan, math.inf, -math.inf, -1.0, 1e9], [1 << 53, (1 << 64) - 1]
    wrong: dict[str, list[Any]] = {
        **dict.fromkeys(("seconds", "handled", "queued", "optimized"), seconds),
        "sums": [0, *counts],
        "received_bytes": counts,
        "sent_bytes": counts,
        "summing": [],  # any number can be
    }
    message = METHODS["Resync"].input_type
    assert wrong.keys() == set(
        message.fields_by_name["server_measured"].message_type.fields_by_name
    )
    with scene() as s:
        own = s.own
        who = {"nonce": own.nonce, "role": SERVER, "rank": 0, "epoch": own.epoch}
        for field, values in wrong.items():
            for value in values:
                times = {**SERVER_TIMES, field: value}
                request = message._concrete_class(**who, server_measured=times)
                code, text = s.attempt("Resync", request)
                assert code == "INVALID_ARGUMENT", (field, value, text)
                assert 0 < len(text) <= LONGEST_TEXT
        (times,) = own.rounds.times(own.scheme.servers, own.servers)
        assert math.isnan(times.handled)
        rounds = {"sums": [1], "waited": [0.0], "ended": [0.0]}
        code, _ = s.attempt("Resync", message._concrete_class(**who, measured=rounds))
        assert code == "INVALID_ARGUMENT"
        s.call("Resync", **who, server_measured=SERVER_TIMES)
        (times,) = own.rounds.times(own.scheme.servers, own.servers)
        assert times.holding == 0.5  # seconds of handling a second
