# SPDX-License-Identifier: Apache-2.0
"""Sampling profilers of this process's threads, by CPU time."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

_INTERVAL = 0.001  # s
# The switch interval: with Python's default of 5 ms, nearly all samples would hit the places where
# a thread releases the GIL by itself.
_SWITCH_INTERVAL = 0.00001

REST = "the rest"


class Sampler(threading.Thread):
    """Samples Python threads until `stop`.

    stages: Stage names by code object. A thread's CPU time since the last sample is attributed to
        the innermost named function on its stack.
    threads: Threads to sample; they must live until `stop`.
    core: The core the sampler runs on.
    """

    def __init__(
        self, stages: Mapping[CodeType, str], threads: list[threading.Thread], core: int
    ) -> None:
        super().__init__(name="sampler", daemon=True)
        self._stages = stages
        self._threads = [thread.ident for thread in threads if thread.ident is not None]
        self._core = core
        self._ended = threading.Event()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def run(self) -> None:
        os.sched_setaffinity(0, {self._core})
        clocks = {ident: time.pthread_getcpuclockid(ident) for ident in self._threads}
        before = {ident: time.clock_gettime(clock) for ident, clock in clocks.items()}
        usual = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_INTERVAL)
        try:
            while not self._ended.wait(_INTERVAL):
                frames = sys._current_frames()
                for ident, clock in clocks.items():
                    now = time.clock_gettime(clock)
                    self._seconds[self._stage(frames.get(ident))] += now - before[ident]
                    before[ident] = now
                frames.clear()
        finally:
            sys.setswitchinterval(usual)

    def stop(self) -> dict[str, float]:
        """Returns CPU seconds of each stage, the largest first."""
        self._ended.set()
        self.join()
        return dict(sorted(self._seconds.items(), key=lambda item: -item[1]))

    def _stage(self, frame: FrameType | None) -> str:
        while frame is not None:
            stage = self._stages.get(frame.f_code)
            if stage is not None:
                return stage
            frame = frame.f_back
        return REST


class MainSampler(Sampler):
    """Samples the main thread, in which greenlets may run; only that thread may start and stop it.

    The thread samples itself on SIGPROF: if another thread walked its frames while a greenlet
    switched, they would point to freed memory.
    """

    def __init__(self, stages: Mapping[CodeType, str], core: int) -> None:
        super().__init__(stages, [threading.main_thread()], core)
        self._handler: Any = None
        self._last = 0.0

    def start(self) -> None:
        """Starts sampling. Raises ValueError outside of the main thread."""
        self._handler = signal.signal(signal.SIGPROF, self._interrupted)
        self._last = time.thread_time()
        super().start()

    def run(self) -> None:
        os.sched_setaffinity(0, {self._core})
        (main,) = self._threads
        while not self._ended.wait(_INTERVAL):
            signal.pthread_kill(main, signal.SIGPROF)

    def stop(self) -> dict[str, float]:
        """Implements ``Sampler.stop``."""
        found = super().stop()
        signal.signal(signal.SIGPROF, self._handler)
        return found

    def _interrupted(self, _: int, frame: FrameType | None) -> None:
        now = time.thread_time()
        self._seconds[self._stage(frame)] += now - self._last
        self._last = now
