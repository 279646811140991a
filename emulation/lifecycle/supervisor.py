# SPDX-License-Identifier: Apache-2.0
"""The first process of a sandbox: runs a testbed from its start to its end.

``python -m emulation.lifecycle.supervisor RUN_DIRECTORY ROOM``, started by
``emulation.lifecycle.launcher``; ``ROOM`` is for what it forks (``emulation.nodes.forkserver``).
The directory's ``testbed.json`` describes the testbed. The process serves requests
(``observability.control``) until ``down`` is requested, a process of the testbed fails, or the
process that started it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from emulation.network.namespaces import SandboxError, settle

if __name__ == "__main__":
    gc.disable()  # modules make many objects, and nearly all of them stay
    # Before Mininet is imported, which inspects the system.
    try:
        settle()
    except SandboxError as error:
        print(f"supervisor: {error}", file=sys.stderr)
        sys.exit(1)

from emulation.lifecycle.execution import SOCKET as EXEC_SOCKET
from emulation.lifecycle.execution import ExecutionServer
from emulation.lifecycle.requests import Requests
from emulation.lifecycle.testbed import Testbed
from emulation.network.emulated import NetworkError
from emulation.nodes import forkserver
from emulation.nodes.processes import ProcessError
from observability.control import SOCKET, serve
from observability.record import RunDirectory

log = logging.getLogger("supervisor")


@contextlib.asynccontextmanager
async def _serving(testbed: Testbed, owner: tuple[int, int] | None) -> AsyncIterator[None]:
    sockets = testbed.run.sockets
    execution = ExecutionServer(sockets / EXEC_SOCKET, testbed.command, owner, testbed.environment)
    try:
        async with serve(sockets / SOCKET, Requests(testbed).handle, owner):
            yield
    finally:
        execution.close()


async def supervise(
    run: RunDirectory, lifeline: Lifeline, fork_server: forkserver.ForkServer | None
) -> int:
    """Brings the testbed up and runs it to its end; returns the exit status."""
    try:
        testbed = Testbed(run, fork_server)
    except (NetworkError, OSError, ValueError) as error:
        text = f"supervisor cannot build the network: {error}"
        (run.path / "failure.txt").write_text(f"{text}\n")
        run.note_failure(text.split("\n", 1)[0], "supervisor")
        log.error("%s", text)
        return 1
    loop = asyncio.get_running_loop()
    log_file = run.logs / "supervisor.log"

    def end(number: signal.Signals) -> None:
        # An orderly end is requested at the socket; a signal is a failure.
        what = f"was ended by {number.name}"
        testbed.processes.fail(ProcessError("supervisor", what, log_file))

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    lifeline.on_cut = lambda: testbed.detached
    given = testbed.facts.get("owner")
    owner = (int(given[0]), int(given[1])) if given else None
    status = 0
    async with _serving(testbed, owner):
        bringing = loop.create_task(testbed.bring_up())
        stopping = loop.create_task(testbed.stopping.wait())
        either: list[asyncio.Future[Any]] = [bringing, stopping]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        failure: BaseException | None = None
        if bringing.done():
            failure = bringing.exception()
        else:
            bringing.cancel()
        if failure is None and not testbed.stopping.is_set():
            until: list[asyncio.Future[Any]] = [testbed.processes.failure, stopping]
            await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
        if failure is None and testbed.processes.failure.done():
            failure = testbed.processes.failure.exception()
        if failure is not None:
            status = 1
            testbed.note(failure, getattr(failure, "name", None))
            (run.path / "failure.txt").write_text(f"{failure}\n")
            log.error("%s", failure)
            if not testbed.ready.done():
                testbed.ready.set_exception(failure)
        stopping.cancel()
        await testbed.take_down()
        for problem in testbed.problems:
            log.error("%s", problem)
        if isinstance(failure, Exception) and not isinstance(
            failure, (ProcessError, TimeoutError, OSError)
        ):
            log.error("unexpected", exc_info=failure)
    run.drop_sockets()
    if owner is not None:
        run.give_to(*owner)
    log.info("down")
    return status


class Lifeline(threading.Thread):
    """Ends the sandbox at the end of standard input, a pipe held by the process that started it.

    on_cut: returns whether to continue nevertheless, as the testbed was detached.
    """

    def __init__(self) -> None:
        super().__init__(name="lifeline", daemon=True)
        self.on_cut: Callable[[], bool] = lambda: False

    def run(self) -> None:
        """Reads until the end of input."""
        while os.read(0, 4096):
            pass
        if not self.on_cut():
            # This is the first process of a PID namespace: the kernel kills the others with it.
            os._exit(1)


def main(arguments: list[str]) -> int:
    """Runs the supervisor of a run directory; returns the exit status."""
    run = RunDirectory(Path(arguments[0]).resolve())
    # Before there are threads, and locks that they hold.
    forks = forkserver.MODULES.keys() - forkserver.fresh()
    fork_server = forkserver.fork(run.logs / "forkserver.log") if forks else None
    logging.basicConfig(
        level="INFO", stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    lifeline = Lifeline()
    lifeline.start()
    # A large topology needs more pipes and terminals than the usual soft limit of 1,024 files.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.chdir(run.path)
    with run.lock():
        return asyncio.run(supervise(run, lifeline, fork_server))


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    try:
        sys.exit(main(sys.argv[1:]))
    finally:
        gc.freeze()  # all memory is about to be freed: not first looked through, several times
