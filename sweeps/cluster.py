# SPDX-License-Identifier: Apache-2.0
"""Runs trials on a Ray cluster (https://docs.ray.io) with the same rackhub on every node."""

from __future__ import annotations

import importlib.util
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

from sweeps import code
from sweeps.errors import SweepError
from sweeps.execution import Order, Outcome, OutcomeRow
from sweeps.trials import Trial

_WAIT_SECONDS = 1.0
_ANSWER_SECONDS = 5.0
_ALONE_SECONDS = 30.0
_QUIET_SECONDS = 60.0


def _on_node(known: str, order: Order) -> OutcomeRow:
    """Runs a trial on the CPU that Ray has assigned."""
    import ray

    from sweeps.execution import execute

    node = ray.get_runtime_context().get_node_id()
    return execute(known, order, f"node {node}").to_message()


def _check_reachable(address: str) -> None:
    """Fails fast if nothing listens there, where Ray would retry for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return  # such as `auto`
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise SweepError(f"--ray {address}: no cluster there: {error}") from error


class RayCrew:
    """Runs as many trials at a time as the cluster has CPUs, or ``most``.

    Args:
        say: Receives a message when no trial ends for long.
        alone: Seconds to wait for a node with a CPU.

    Raises:
        SweepError: Ray is not installed, or there is no cluster at that address.
    """

    def __init__(
        self,
        address: str,
        most: int | None = None,
        *,
        say: Callable[[str], None] = lambda _: None,
        alone: float = _ALONE_SECONDS,
    ) -> None:
        if importlib.util.find_spec("ray") is None:
            raise SweepError(
                "--ray: Ray is not installed here; pip install 'rackhub[ray]', on every node"
            )
        import ray

        self._ray = ray
        _check_reachable(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).split("\n", 1)[0]
            raise SweepError(f"--ray {address}: no cluster there: {reason}") from error
        cpus = self._cpus()
        if cpus < 1:
            ray.shutdown()
            raise SweepError(f"--ray {address}: the cluster has no CPU")
        self.slots = cpus if most is None else min(cpus, most)
        # The sweep retries failed trials, not Ray.
        self._task = ray.remote(num_cpus=1, max_retries=0)(_on_node)
        self._todo: list[Trial] = []
        self._running: dict[Any, Trial] = {}
        self._say, self._alone = say, alone
        self._alone_since: float | None = None

    def submit(self, trial: Trial) -> None:
        """Implements ``Crew.submit``."""
        self._todo.append(trial)
        self._start()

    def next(self) -> tuple[Trial, Outcome]:
        """Implements ``Crew.next``."""
        ready: list[Any] = []
        reported = began = time.monotonic()
        while not ready:
            # Signal handlers run only between waits, so waits have a timeout.
            ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=_WAIT_SECONDS)
            if ready:
                break
            self._check_alive()
            now = time.monotonic()
            if now - reported > _QUIET_SECONDS:
                reported = now
                self._say(
                    f"--ray: no trial has ended for {now - began:.0f} s: {len(self._running)} are"
                    f" with Ray, whose nodes have CPUs for {self._cpus()}; others may use these"
                    " (see `ray status`), and Ray makes its workers nice (RAY_worker_niceness)"
                )
        trial = self._running.pop(ready[0])
        self._start()
        try:
            return trial, Outcome(**self._ray.get(ready[0]))
        except self._ray.exceptions.RayError as error:
            text, _, rest = str(error).strip().partition("\n")
            return trial, Outcome(None, f"{type(error).__name__}: {text}", rest, "Ray")

    def close(self) -> None:
        """Cancels running trials and leaves the cluster."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()

    def _cpus(self) -> int:
        """Returns the trials that nodes can run at a time; a trial needs a whole CPU of one."""
        nodes: list[dict[str, Any]] = self._ray.nodes()
        return sum(int(one["Resources"].get("CPU", 0)) for one in nodes if one["Alive"])

    def _check_alive(self) -> None:
        """Fails if no node has had a CPU for ``alone`` seconds; a lost node may come back."""
        if self._cpus():
            self._alone_since = None
            return
        now = time.monotonic()
        if self._alone_since is None:
            self._alone_since = now
            self._say(f"--ray: no node has a CPU now; waiting {self._alone:g} s for one")
        elif now - self._alone_since > self._alone:
            raise SweepError(
                f"--ray: for {self._alone:g} s the cluster has had no node with a CPU; what is"
                " done is kept, and the same command goes on when it has one"
            )

    def _start(self) -> None:
        while self._todo and len(self._running) < self.slots:
            trial = self._todo.pop(0)
            reference = self._task.remote(code.digest(), trial.order)
            self._running[reference] = trial
