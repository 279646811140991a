# SPDX-License-Identifier: Apache-2.0
"""Tests that packets see each table update entirely or not at all."""

from __future__ import annotations

import threading
import time

from tests.p4 import corpus

TABLE, ACTION = "Enter.ternary_table", "Enter.masked"
BATCH = 200


def test_writers_and_traffic() -> None:
    pipeline = corpus("matches", pool=8)
    frames, ports = [bytes(23)] * BATCH, [1] * BATCH
    pipeline.insert(TABLE, [(0, 0), (0, 0)], ACTION, [1], priority=1)
    stop = threading.Event()
    verdicts: set[int] = set()
    sent = [0]

    def traffic() -> None:
        while not stop.is_set():
            outputs = pipeline.inject_batch(ports, frames)
            assert len(outputs) == BATCH
            verdicts.update(out[25] for _, out in outputs)
            sent[0] += BATCH

    threads = [threading.Thread(target=traffic) for _ in range(2)]
    for thread in threads:
        thread.start()
    started = time.monotonic()
    changes = 0
    while changes < 300 or not {1, 2, 3} <= verdicts:
        assert time.monotonic() - started < 30, f"after {changes} changes only {verdicts} seen"
        handle = pipeline.insert(TABLE, [(0, 0xFF), (0, 0)], ACTION, [2], priority=2)
        pipeline.modify(TABLE, handle, ACTION, [3])
        assert pipeline.stats()["received"] >= 0
        pipeline.delete(TABLE, handle)
        changes += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert verdicts == {1, 2, 3}
    assert pipeline.stats()["received"] == pipeline.stats()["sent"] == sent[0]
