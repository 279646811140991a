# SPDX-License-Identifier: Apache-2.0
"""The gloo baseline: PyTorch's all-reduce. Optional, and in emulation only."""

from __future__ import annotations

import importlib.util
import os
import time
from datetime import timedelta
from typing import Any

import numpy as np

from baselines.members import Report, sum_of, values_of

_TIMEOUT = timedelta(seconds=60)


def missing() -> str:
    """Returns why gloo is unavailable and how to install it; empty if it is available."""
    if importlib.util.find_spec("torch") is None:
        return (
            "gloo is PyTorch's, which is not installed: pip install torch --index-url"
            " https://download.pytorch.org/whl/cpu, then pip install 'rackhub[gloo]' (which alone"
            " takes PyTorch's build for GPUs, of several GB)"
        )
    return ""


class GlooMember:
    """A worker that uses gloo (a ``members.Member``).

    interface: This host's network interface.
    address, port: The rendezvous at the first worker.
    """

    def __init__(
        self, rank: int, workers: int, size: int, interface: str, address: str, port: int
    ) -> None:
        self._rank, self._workers, self._size = rank, workers, size
        self._rendezvous = f"tcp://{address}:{port}"
        os.environ["GLOO_SOCKET_IFNAME"] = interface

    def prepare(self) -> None:
        """Implements ``Member.prepare``."""

    def open(self, setup: Any) -> None:
        """Implements ``Member.open``."""
        import torch
        import torch.distributed as group

        torch.set_num_threads(1)
        group.init_process_group(
            "gloo",
            init_method=self._rendezvous,
            rank=self._rank,
            world_size=self._workers,
            timeout=_TIMEOUT,
        )

    def iterate(self, number: int) -> Report:
        """Implements ``Member.iterate``."""
        import torch
        import torch.distributed as group

        values = torch.from_numpy(values_of(self._rank, number, self._size))
        began = time.monotonic()
        group.all_reduce(values, op=group.ReduceOp.SUM)
        ended = time.monotonic()
        wrong = np.count_nonzero(values.numpy() != sum_of(self._workers, number, self._size))
        return Report(began, ended, int(wrong))

    def close(self) -> None:
        """Implements ``Member.close``."""
        import torch.distributed as group

        group.destroy_process_group()
