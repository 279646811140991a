# SPDX-License-Identifier: Apache-2.0
"""Tests hostile clients of the control sockets: each is answered or closed, holds no memory, and
does not block others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from emulation.lifecycle.execution import ExecutionServer
from observability.control import ControlError, serve

REQUESTS = [
    b"",
    b"\n",
    b"\xff\xfe\n",
    b"null\n",
    b"[]\n",
    b"7\n",
    b'"do"\n',
    b"{}\n",
    b'{"do": []}\n',
    b'{"do": "submit"}\n',
    b'{"do": "submit", "faults": 5}\n',
    b'{"do": "submit", "faults": [5]}\n',
    b'{"do": "submit", "faults": [{}]}\n',
    b'{"do": "submit", "faults": [{"quality": 1, "seconds": 1, "ends": 1}]}\n',
    b'{"do": NaN}\n',
    b'{"do": ' + b"9" * 5000 + b"}\n",
    b"[" * 100_000 + b"\n",
    b'{"do": ' * 50_000 + b"\n",
    b"x" * 100_000 + b"\n",
    b'{"do": "cut',
]


async def handle(request: Any, emit: Any) -> Any:
    """Reads requests as the supervisor does."""
    do = request["do"]
    if do == "submit":
        return [str(one) for one in request.get("faults", ())][request["job"]]
    if do == "wait":
        await asyncio.Event().wait()
    if do == "talk":
        while True:
            emit({"event": "x" * 100_000})
            await asyncio.sleep(0)
    if do == "status":
        return "well"
    raise ControlError(f"{do!r:.80} is no request")


@contextlib.asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[str]:
    async with serve(tmp_path / "control", handle, None):
        yield str(tmp_path / "control")


async def said(path: str, data: bytes) -> dict[str, Any]:
    """The last answer to a request; nothing if it is none."""
    reader, writer = await asyncio.open_unix_connection(path, limit=1 << 20)
    writer.write(data)
    if not data.endswith(b"\n"):
        writer.write_eof()
    lines = [json.loads(line) async for line in reader]
    writer.close()
    return lines[-1] if lines else {}


def test_invalid_request_is_rejected(tmp_path: Path) -> None:
    async def run() -> None:
        loud: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: loud.append(context))
        async with serving(tmp_path) as path:
            for data in REQUESTS:
                answer = await said(path, data)
                if data:
                    assert list(answer) == ["error"], data[:80]
                    assert len(answer["error"]) < 400
            assert await said(path, b'{"do": "status"}\n') == {"result": "well"}
        assert not loud

    asyncio.run(run())


def test_data_after_request_is_discarded(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as path:
            _, writer = await asyncio.open_unix_connection(path)
            writer.write(b'{"do": "wait"}\n')
            chunk = bytes(1 << 20)
            tracemalloc.start()
            try:
                for _ in range(64):
                    writer.write(chunk)
                    await writer.drain()  # it is read, and so not held in the socket
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert most < 16 << 20
            writer.close()

    asyncio.run(run())


def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as path:
            with socket.socket(socket.AF_UNIX) as slow:
                slow.connect(path)
                slow.sendall(b'{"do": "talk"}\n')
                slow.setblocking(False)
                assert await said(path, b'{"do": "status"}\n') == {"result": "well"}
                # No result ever comes, so only a server that gives up lets this end.
                while len(asyncio.all_tasks()) > 1:
                    await asyncio.sleep(0)
            assert await said(path, b'{"do": "status"}\n') == {"result": "well"}

    asyncio.run(run())


def test_silent_clients_do_not_block_others(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as path:
            with contextlib.ExitStack() as stack:
                for count in range(200):
                    one = stack.enter_context(socket.socket(socket.AF_UNIX))
                    one.connect(path)
                    one.sendall(b'{"do": "sta'[: count % 12])
                    await asyncio.sleep(0)
                assert await said(path, b'{"do": "status"}\n') == {"result": "well"}

    asyncio.run(run())


# -- exec -----------------------------------------------------------------------------------------


def refuse(node: str, program: list[str]) -> list[str]:
    raise ControlError(f"no node {node!r:.80}")


EXEC = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"[" * 100_000,
    b'{"program": 5}',
    b'{"program": [], "node": "w0", "cwd": "/", "env": {}}',
    b'{"program": ["true"], "node": 7, "cwd": 5, "env": 5}',
    b'{"program": ["true"], "node": "w0", "cwd": "/", "env": {}}',
    b'{"program": ["true"], "node": "w0", "cwd": "/", "env": {}, "umask": -1}',
    b'{"program": ["true"], "node": "w0", "cwd": "/", "env": {"A": 5}, "umask": 0}',
    b"\xff",
]


@pytest.mark.parametrize("data", EXEC, ids=lambda data: ascii(data[:20]))
def test_invalid_command_is_rejected(data: bytes, tmp_path: Path) -> None:
    # A command line that runs, so that all of the request is read.
    server = ExecutionServer(tmp_path / "exec", lambda _node, program: program, None)
    try:
        with (
            socket.socket(socket.AF_UNIX) as caller,
            (tmp_path / "out").open("w+") as out,
        ):
            caller.connect(str(tmp_path / "exec"))
            socket.send_fds(caller, [len(data).to_bytes(4, "big")], [out.fileno()] * 3)
            if data:  # else it is answered, and hung up on, before it could be sent
                caller.sendall(data)
            with caller.makefile() as stream:
                answer = json.loads(stream.readline())
        assert list(answer) == ["error"]
        assert answer["error"].startswith("not a request to run a command")
    finally:
        server.close()


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("length", [0, (1 << 20) + 1, (1 << 32) - 1])
def test_command_of_wrong_length_is_rejected(count: int, length: int, tmp_path: Path) -> None:
    server = ExecutionServer(tmp_path / "exec", refuse, None)
    try:
        with socket.socket(socket.AF_UNIX) as caller, (tmp_path / "out").open("w+") as out:
            caller.connect(str(tmp_path / "exec"))
            data = [length.to_bytes(4, "big")]
            socket.send_fds(caller, data, [out.fileno()] * count)
            with caller.makefile() as stream:
                answer = json.loads(stream.readline())
        assert answer == {"error": "not a request to run a command"}
    finally:
        server.close()
