# SPDX-License-Identifier: Apache-2.0
"""Tests cutting one connection of another process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from emulation.faults.severing import sever

CLIENT = """
import socket, sys
ends = [socket.socket(socket.AF_UNIX) for _ in sys.argv[1:]]
for end, path in zip(ends, sys.argv[1:]):
    end.connect(path)
print("connected", flush=True)
for end in ends:
    print(len(end.recv(10)), flush=True)
"""


@pytest.fixture
def listeners(tmp_path: Path) -> Iterator[dict[str, socket.socket]]:
    with ExitStack() as stack:
        found = {}
        for name in ("first", "second"):
            found[name] = stack.enter_context(socket.socket(socket.AF_UNIX))
            found[name].bind(str(tmp_path / name))
            found[name].listen()
        yield found


def test_only_connections_to_that_socket_are_cut_wherever_it_has_been_moved(
    listeners: dict[str, socket.socket], tmp_path: Path
) -> None:
    first, second = (str(tmp_path / name) for name in listeners)
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, first, second], stdout=subprocess.PIPE, text=True
    )
    with client, ExitStack() as stack:
        stack.callback(client.kill)
        ends = {name: stack.enter_context(one.accept()[0]) for name, one in listeners.items()}
        assert client.stdout is not None
        assert client.stdout.readline() == "connected\n"
        (tmp_path / "first").rename(tmp_path / "elsewhere")
        assert sever(client.pid, first) == 1
        # Both ends see the end of it.
        assert client.stdout.readline() == "0\n"
        assert ends["first"].recv(10) == b""
        ends["second"].send(b"alive")
        assert client.stdout.readline() == "5\n"
        client.wait()


def test_a_process_without_such_a_connection_keeps_all_it_has(
    listeners: dict[str, socket.socket], tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(str(tmp_path / "second"))
        assert sever(os.getpid(), str(tmp_path / "first")) == 0
        with listeners["second"].accept()[0] as other:
            other.send(b"alive")
            assert end.recv(10) == b"alive"


def test_ended_process_is_reported() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
        with pytest.raises(ProcessLookupError):
            sever(gone.pid, "anywhere")
