# SPDX-License-Identifier: Apache-2.0
"""Tests that server processes join each job that the controller reports once, and rejoin after a
restart."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from emulation.nodes.processes import Process
from emulation.nodes.serverhost import ServerHost
from emulation.nodes.serving import Serving
from testbed.errors import JobError

# A server as its standard input and output are. One job is not for it.
SERVER = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    with open("joins", "a") as file:
        file.write(line)
    print("refused for a reason" if "forbidden" in line else "joined 1", flush=True)
"""


class Site:
    """Servers s0 and s1, in folders of their names, which note the orders they get."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers = {name: ServerHost(name) for name in ("s0", "s1")}
        self.orders: list[str] = []
        self.serving = Serving(self.servers, self._start, self.orders.append)

    async def _start(self, names: Sequence[str]) -> None:
        for name in names:
            if self.servers[name].process is None:
                self.start(name)

    def start(self, name: str) -> None:
        """A process, perhaps in the place of another."""
        (self.folder / name).mkdir(exist_ok=True)
        self.servers[name].begin(
            Process(
                name,
                [sys.executable, "-c", SERVER],
                self.folder / f"{name}.log",
                cwd=self.folder / name,
                env={},
                on_line=self.servers[name].line,
                wants_input=True,
            )
        )

    def joins(self, name: str) -> list[str]:
        """The orders that a server got so far."""
        return (self.folder / name / "joins").read_text().splitlines()

    async def __aenter__(self) -> Site:
        return self

    async def __aexit__(self, *_: object) -> None:
        started = [one.process for one in self.servers.values() if one.process is not None]
        await asyncio.gather(*(process.stop() for process in started))


def job(number: int, *servers: str, nonce: str = "") -> dict[str, Any]:
    return {
        "job": number,
        "name": f"job{number}",
        "nonce": nonce or f"nonce{number}",
        "workers": ["w0", "w1"],
        "servers": list(servers),
        "switches": ["tor0"],
    }


def test_servers_join_each_job_once_by_rank(tmp_path: Path) -> None:
    async def run() -> None:
        async with Site(tmp_path) as site:
            waiting = asyncio.ensure_future(site.serving.joined(2, 30))
            site.serving.update([job(1, "s0")])
            site.serving.update([job(1, "s0"), job(2, "s1", "s0")])
            await site.serving.joined(1, 30)
            await waiting
            site.serving.update([{**job(2, "s1", "s0"), "switches": ["core0"]}])
            (known,) = site.serving.alive
            assert (known.number, known.switches) == (2, {"tor0", "core0"})
            with pytest.raises(JobError, match="job 1 is over"):
                await site.serving.joined(1, 30)
            assert sorted(site.joins("s0")) == ["join nonce1 0", "join nonce2 1"]
            assert site.joins("s1") == ["join nonce2 0"]

    asyncio.run(run())


def test_a_restarted_server_rejoins_live_jobs(tmp_path: Path) -> None:
    async def run() -> None:
        async with Site(tmp_path) as site:
            site.serving.update([job(1, "s0"), job(2, "s0")])
            await asyncio.gather(site.serving.joined(1, 30), site.serving.joined(2, 30))
            site.serving.update([job(2, "s0")])
            first = site.servers["s0"].process
            assert first is not None
            await first.stop()
            (tmp_path / "s0" / "joins").unlink()
            site.start("s0")
            # A job comes while it starts: it gets that order once, too.
            site.serving.update([job(2, "s0"), job(3, "s0")])
            await asyncio.gather(site.serving.rejoin("s0"), site.serving.joined(3, 30))
            assert sorted(site.joins("s0")) == ["join nonce2 0", "join nonce3 0"]

    asyncio.run(run())


def test_a_refusing_server_is_reported(tmp_path: Path) -> None:
    async def run() -> None:
        async with Site(tmp_path) as site:
            site.serving.update([job(1, "s0", nonce="forbidden")])
            with pytest.raises(JobError, match="s0: refused for a reason"):
                await site.serving.joined(1, 30)
            process = site.servers["s0"].process
            assert process is not None
            await process.stop()
            site.start("s0")
            await site.serving.rejoin("s0")
            assert site.orders == ["job job1 goes on without s0: refused for a reason"]

    asyncio.run(run())


def test_waiting_for_an_unreported_job_times_out(tmp_path: Path) -> None:
    async def run() -> None:
        async with Site(tmp_path) as site:
            with pytest.raises(TimeoutError, match="did not report"):
                await site.serving.joined(7, 0)

    asyncio.run(run())
