# SPDX-License-Identifier: Apache-2.0
"""Where the threads of this process spend their CPU time, by sampling what they are in."""

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
# Other threads hand over to the sampler after this long: with Python's own 5 ms nearly all samples
# would be of where a thread lets go by itself.
_SWITCH_INTERVAL = 0.00001

REST = "the rest"


class Sampler(threading.Thread):
    """Samples Python threads until `stop`.

    stages: of functions, by their code. What a thread has computed since the last sample is counted
    for the innermost function that it is in and that is named there. threads: which, all of which
    have to live until `stop`. core: that the sampler itself runs on.
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
        """CPU seconds of each stage, the largest first."""
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
    """Samples the main thread, which starts and stops it and in which greenlets may run.

    It looks at its own frames, at a signal (SIGPROF): while another thread goes through them a
    greenlet may switch, and then they lead to memory that is free.
    """

    def __init__(self, stages: Mapping[CodeType, str], core: int) -> None:
        super().__init__(stages, [threading.main_thread()], core)
        self._handler: Any = None
        self._last = 0.0

    def start(self) -> None:
        """See Thread. Raises ValueError in another thread than the main one."""
        self._handler = signal.signal(signal.SIGPROF, self._interrupted)
        self._last = time.thread_time()
        super().start()

    def run(self) -> None:
        os.sched_setaffinity(0, {self._core})
        (main,) = self._threads
        while not self._ended.wait(_INTERVAL):
            signal.pthread_kill(main, signal.SIGPROF)

    def stop(self) -> dict[str, float]:
        """See Sampler."""
        found = super().stop()
        signal.signal(signal.SIGPROF, self._handler)
        return found

    def _interrupted(self, _: int, frame: FrameType | None) -> None:
        now = time.thread_time()
        self._seconds[self._stage(frame)] += now - self._last
        self._last = now
