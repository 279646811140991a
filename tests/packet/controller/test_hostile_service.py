# SPDX-License-Identifier: Apache-2.0
"""Tests hostile callers of the job service while another job's chunks are in flight: every call is
answered, rejections have reasons, and the other job's sums are exact.

RACKHUB_HOSTILE_CALLS says how many calls are drawn, and how many are in a flood.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.jobs.departures import LONGEST_REASON
from controller.jobs.job import State
from controller.jobs.roster import MOST_WAITING, REMEMBERED
from protocol import jobs_pb2
from tests.packet.controller.hostile_service import (
    LEVELS,
    LIMIT,
    LONGEST_TEXT,
    METHODS,
    MOST,
    PAYLOAD,
    REFUSALS,
    SERVER,
    WORKER,
    Scene,
    keys,
    results,
    right,
    scene,
)

CALLS = int(os.environ.get("RACKHUB_HOSTILE_CALLS", "400"))
pytestmark = pytest.mark.timeout(300 + CALLS)

# -- any message ----------------------------------------------------------------------------------

TEXTS = ["", "x", "w0", "s0", "victim", "\0", "\x1b[2J", "ü" * 300, "a" * 5000]
NONCES = ["own", "own", "own", "ended", "almost the victim's", "", "0" * 32]


def number(bits: int, signed: bool) -> st.SearchStrategy[int]:
    least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    near = [v for v in (least, 0, 1, 2, 3, 255, 65535, 65536, most) if v <= most]
    return st.sampled_from(near) | st.integers(least, most)


def values_of(field: Any) -> st.SearchStrategy[Any]:
    kinds: dict[int, Callable[[], st.SearchStrategy[Any]]] = {
        field.CPPTYPE_INT32: lambda: number(32, True),
        field.CPPTYPE_INT64: lambda: number(64, True),
        field.CPPTYPE_UINT32: lambda: number(32, False),
        field.CPPTYPE_UINT64: lambda: number(64, False),
        field.CPPTYPE_FLOAT: lambda: st.floats(width=32),
        field.CPPTYPE_DOUBLE: st.floats,
        field.CPPTYPE_BOOL: st.booleans,
        field.CPPTYPE_ENUM: lambda: st.sampled_from([0, 1, 1, 2, 2, 3, 4, 5, -1, (1 << 31) - 1]),
        field.CPPTYPE_MESSAGE: lambda: message(field.message_type),
        field.CPPTYPE_STRING: lambda: (
            st.binary(max_size=64) | st.sampled_from([bytes(12), bytes(32), bytes(PAYLOAD)])
            if field.type == field.TYPE_BYTES
            else st.sampled_from(NONCES if field.name == "nonce" else TEXTS)
        ),
    }
    one = kinds[field.cpp_type]()
    return st.lists(one, max_size=4) if field.is_repeated else one


def message(descriptor: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Fields of a message of that type, any of them missing, in the limits of protobuf alone."""
    return st.fixed_dictionaries(
        {}, optional={field.name: values_of(field) for field in descriptor.fields}
    ).map(lambda fields: one_of_each(descriptor, fields))


def one_of_each(descriptor: Any, fields: dict[str, Any]) -> dict[str, Any]:
    for group in descriptor.oneofs:
        given_ones = [field.name for field in group.fields if field.name in fields]
        for name in given_ones[1:]:
            del fields[name]
    return fields


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, Any, str]:
    name = draw(st.sampled_from(sorted(METHODS)))
    fields = draw(message(METHODS[name].input_type))
    if "nonce" in METHODS[name].input_type.fields_by_name:
        fields["nonce"] = draw(st.sampled_from(NONCES))
    return name, fields, draw(st.sampled_from(["as it is", "twice", "cut", "stirred"]))


def raw(s: Scene, name: str, data: bytes) -> tuple[str, str]:
    """Status and text of a call with these bytes for its request."""
    path = f"/{METHODS[name].containing_service.full_name}/{name}"
    try:
        if METHODS[name].server_streaming:
            stream = s.channel.unary_stream(path)(data)
            # It may be right: the instruction comes, or is waited for.
            threading.Timer(0.0, stream.cancel).start()
            list(stream)
        else:
            s.channel.unary_unary(path)(data)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return "OK", ""


def test_any_request_is_answered_and_no_other_job_notices() -> None:
    seen: Counter[str] = Counter()
    with scene() as s:

        @settings(max_examples=CALLS, deadline=None, database=None)
        @given(calls())
        def attempt(call: tuple[str, Any, str]) -> None:
            name, fields, how = call
            if s.own.state.over:
                s.own = s.running()
            nonce = fields.get("nonce")
            known = {
                "own": s.own.nonce,
                "ended": s.ended.nonce,
                "almost the victim's": s.victim.job.nonce[:-1] + "g",
            }
            if nonce in known:
                fields = {**fields, "nonce": known[nonce]}
            data = METHODS[name].input_type._concrete_class(**fields).SerializeToString()
            if how == "twice":
                data += data
            elif how == "cut":
                data = data[: len(data) // 2]
            elif how == "stirred" and data:
                at = len(data) // 2
                data = data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :]
            code, text = raw(s, name, data)
            seen[code] += 1
            if code == "INTERNAL":  # protobuf's: not a message at all
                assert "deserializing" in text, (name, fields, text)
            else:
                assert code in REFUSALS | {"OK", "CANCELLED"}, (name, fields, code, text)
                assert code in ("OK", "CANCELLED") or 0 < len(text) <= LONGEST_TEXT
            s.pass_time()

        attempt()
        s.finish()
    assert {"OK", "INVALID_ARGUMENT", "PERMISSION_DENIED"} <= seen.keys(), seen


# -- nonces, order, answers -----------------------------------------------------------------------


def test_a_nonce_opens_its_own_job_alone_and_that_only_while_it_lasts() -> None:
    with scene() as s:
        for name, fields in METHODS.items():
            if "nonce" not in fields.input_type.fields_by_name or name in ("Leave", "Gone"):
                continue
            request = right(s, name) | {"nonce": s.ended.nonce}
            code, text = s.attempt(name, fields.input_type._concrete_class(**request))
            assert (code, text) == ("ABORTED", f"{s.ended} failed: {s.ended.reason}"), name
        # Leaving what is over is fine, and changes nothing: a late leave is harmless.
        for name in ("Leave", "Gone"):
            s.call(name, nonce=s.ended.nonce, role=WORKER, rank=1, reason="again")
            assert "again" not in s.ended.reason
        # The victim's rank 2 exists, the own job's does not: a nonce gives no place elsewhere.
        code, _ = s.attempt(
            "Heartbeat", jobs_pb2.HeartbeatRequest(nonce=s.own.nonce, role=WORKER, rank=2)
        )
        assert code == "INVALID_ARGUMENT"
        s.finish()


def test_calls_in_the_wrong_order_are_refused() -> None:
    with scene() as s:
        job = s.create()
        who = {"nonce": job.nonce, "role": WORKER, "rank": 0}
        for name, more in (
            ("InitService", {"keys": keys(768)}),
            ("Resync", {"epoch": 1, "report": {"levels": LEVELS}}),
            ("Heartbeat", {}),
        ):
            fields = who | more
            if name == "InitService":
                del fields["role"]
            request = METHODS[name].input_type._concrete_class(**fields)
            code, text = s.attempt(name, request)
            assert code == "FAILED_PRECONDITION", text
            assert "call ConnectService first" in text
        s.call("ConnectService", address=s.address(WORKER, 0), **who)
        s.call("Resync", epoch=1, broken={"chunk": 0}, **who)  # nothing runs yet: ignored
        assert (job.state, job.epoch) == (State.WAITING, 1)
        s.finish()


def test_unsolicited_answers_are_ignored() -> None:
    with scene() as s:
        job = s.changing()
        assert job.change is not None
        who = {"nonce": job.nonce, "role": WORKER, "rank": 1}
        server = who | {"role": SERVER, "rank": 0}
        before = dict(job.change.owing)
        assert [place.rank for place in before] == [1]  # that holds the result
        for caller, epoch, what in (
            (who, 1, {"handed": {"results": results(1), "last": True}}),
            (who, 3, {"handed": {"results": results(1), "last": True}}),
            (who, MOST, {"broken": {"chunk": 0}}),
            (who, 2, {"report": {"levels": bytes(3)}}),  # it has reported
            (who, 2, {"report": {"levels": np.full(3, MOST, "<u4").tobytes()}}),
            (who, 2, {"taken": {"page": 0}}),
            (who, 2, {"taken": {"page": MOST}}),
            (who, 2, {"broken": {"chunk": 0}}),  # it runs no plan of this epoch
            (who | {"rank": 0}, 2, {"handed": {"results": results(1), "last": True}}),
            (server, 2, {"handed": {"results": results(1), "last": True}}),
            (server, 2, {"taken": {"page": 0}}),
            (server, 2, {"fetched": {}}),
            (who, 2, {"fetched": {}}),
            (who, 2, {"begun": {"number": 0, "calls": (1 << 64) - 1}}),
            (who, 2, {"reached": {"number": MOST}}),
            (who, 2, {"donated": {"page": {"size": 1 << 63}}}),
            (who, 2, {"donated": {"unable": "x" * 10**6}}),
            (who, 2, {"restored": {"unable": "x" * 10**6}}),
        ):
            s.call("Resync", epoch=epoch, **caller, **what)
            assert (job.epoch, job.change.owing) == (2, before), what
            assert not job.change.pool.results
        s.call("Resync", epoch=2, handed={"results": results(1), "last": True}, **who)
        assert list(job.change.pool.results) == [(2, 1)]
        s.finish()


@pytest.mark.parametrize("call", ["Leave", "Gone"])
def test_a_reason_is_shown_as_one_short_line(call: str) -> None:
    with scene() as s:
        job = s.running() if call == "Leave" else s.create()
        if call == "Gone":
            who = {"nonce": job.nonce, "role": WORKER, "rank": 0}
            s.call("ConnectService", address=s.address(WORKER, 0), **who)
        reason = "bad\n\x1b[2J\x07 news " + "x" * 10**6
        s.call(call, nonce=job.nonce, role=WORKER, rank=0, reason=reason)
        assert job.state is State.FAILED
        assert job.reason.isprintable()
        assert len(job.reason) < LONGEST_REASON + 100
        assert "bad" in job.reason
        s.finish()


# -- masses ---------------------------------------------------------------------------------------


def test_job_flood_is_limited_and_releases_slots() -> None:
    with scene() as s:
        codes: Counter[str] = Counter()
        for count in range(2 * CALLS):
            tree = jobs_pb2.NONE if count % 2 else jobs_pb2.TWO_LEVEL
            request = jobs_pb2.CreateServiceRequest(**s.admission(f"flood{count}", tree))
            code, text = s.attempt("CreateService", request)
            codes[code] += 1
            if count % 100 == 0:
                s.pass_time()
        assert codes["OK"] == MOST_WAITING
        assert codes["RESOURCE_EXHAUSTED"] == 2 * CALLS - MOST_WAITING
        assert "waiting for members" in text
        s.finish()
        assert s.network.run(
            lambda: all(job.state.over for job in s.table.jobs() if job is not s.victim.job), LIMIT
        )
        held = s.victim.job.slots
        used = {n: b.used for n, b in s.table.resources.budgets.items() if b.used}
        assert used == held
        assert len(s.table.jobs()) <= REMEMBERED + 1
        s.running()  # there is room again


def test_excessive_watches_do_not_block_others() -> None:
    with scene() as s, contextlib.ExitStack() as stack:
        channels = [stack.enter_context(s.connect()) for _ in range(4)]
        request = jobs_pb2.WatchRequest(nonce=s.own.nonce, role=WORKER, rank=0)
        path = "/rackhub.jobs.v1.JobService/Watch"
        opened = [
            channels[count % 4].unary_stream(
                path, jobs_pb2.WatchRequest.SerializeToString, jobs_pb2.Instruction.FromString
            )(request)
            for count in range(1000)
        ]
        said = [end_reason(watch) for watch in opened]  # so each has been heard
        assert s.call("Watch", nonce=s.own.nonce, role=WORKER, rank=1).plan.epoch == 1
        s.call("Status")
        s.call("Leave", nonce=s.own.nonce, role=WORKER, rank=0, reason="enough")
        for count, watch in enumerate(opened):
            while said[count] == "":
                said[count] = end_reason(watch)
        # One took the place of the other; one was left when the job ended.
        assert all(text.startswith("ABORTED: ") for text in said)
        ends = Counter("another watch" in text for text in said)
        assert ends == {True: 999, False: 1}
        assert [text for text in said if "gave up: enough" in text]
        s.finish()


def end_reason(watch: Any) -> str:
    """Why a watch has ended; "" for an instruction."""
    try:
        next(watch)
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"
    return ""


@pytest.mark.parametrize("how", ["silent", "garbage", "preface", "no message"])
def test_half_open_connections_do_not_block_others(how: str) -> None:
    first = {
        "silent": b"",
        "garbage": b"\xff" * 4096,
        "preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    }
    with scene() as s, contextlib.ExitStack() as stack:
        if how == "no message":
            channel = stack.enter_context(s.connect())
            asked = threading.Event()
            stack.callback(asked.set)

            def nothing() -> Any:
                asked.wait()
                yield from ()

            path = "/rackhub.jobs.v1.JobService/Heartbeat"
            for _ in range(200):
                stack.callback(channel.stream_unary(path).future(nothing()).cancel)
        else:
            for _ in range(200):
                one = stack.enter_context(socket.socket(socket.AF_UNIX))
                one.connect(s.path)
                one.sendall(first[how])
        s.call("Status")
        s.beat(s.own)
        assert s.call("Watch", nonce=s.own.nonce, role=SERVER, rank=0).plan.epoch == 1
        s.finish()
