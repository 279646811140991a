# SPDX-License-Identifier: Apache-2.0
"""Takes the packets that arrive at a worker: finds their numbers, checks results, takes states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.data.reports import Failure, Statistics
from hosts.worker.congestion.control import CongestionControl
from hosts.worker.loss_detection import LossDetector
from hosts.worker.native_steps import NativeSteps
from hosts.worker.slots import DIRECT, EMPTY, WAITING, Rows, Slots
from hosts.worker.verification import Mask, wrong
from protocol.header import FLAGGED, Array, Batch, Flag, Op, Phase, ops, peer_keys, phases
from protocol.plan import MOST_CHILDREN, WorkerPlan

# numpy scalars: enumeration members cost a look-up and widen arrays.
_DIRECT_FLAG = np.uint8(Flag.DIRECT)
_ECN = np.uint8(Flag.ECN)
_FLAGGED = np.uint8(FLAGGED)
_RESULT = np.uint8(Op.RESULT)
_STATE = np.uint8(Op.STATE)
_FINAL = np.uint8(Phase.FINAL)


class Receiver:
    """The receiving half of a worker's transport.

    servers: (n,) PEER by rank.
    stream_index: (256,) index by the stream number in packets; -1: none.
    complete: takes good results: rows, headers, payloads and the stage that they end.
    steps: takes plain results natively.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        slots: Slots,
        detector: LossDetector,
        statistics: Statistics,
        congestion: CongestionControl,
        servers: Array,
        stream_index: npt.NDArray[np.intp],
        complete: Callable[[Rows, Array, Any, int], None],
        steps: NativeSteps | None,
    ) -> None:
        self._plan, self._slots, self._detector = plan, slots, detector
        self._statistics, self._congestion = statistics, congestion
        self._server_keys, self._stream_index = peer_keys(servers), stream_index
        self._complete, self._steps = complete, steps
        self._failures: list[Failure] = []

    def take_failures(self) -> list[Failure]:
        """Returns the chunks that failed for good since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def take(self, now: float, batch: Batch) -> None:
        """Takes packets that arrived by `now`; packets for no number in flight are counted."""
        if self._steps is not None and self._take_plain(self._steps, now, batch):
            return
        slots = self._slots
        headers = batch.headers
        kind = ops(headers)
        stream = self._stream_index[headers["stream"]]
        seqs = headers["seq"].astype(np.uint32)
        rows = slots.bases[stream] + (seqs & slots.masks[stream])
        ours = (headers["job"] == self._plan.job) & (headers["epoch"] == self._plan.epoch)
        ours &= ((kind == _RESULT) | (kind == _STATE)) & (stream >= 0)
        known = (slots.seq[rows] == seqs) & (slots.stage[rows] != EMPTY)
        same_chunk = slots.chunk[rows] == headers["chunk"]
        from_server = peer_keys(batch.peers) == self._server_keys[slots.server[rows]]
        taken: Mask = ours & known & same_chunk & from_server
        if not taken.all():
            self._drop("foreign", ~ours)
            self._drop("stale", ours & ~known)
            self._drop("other_chunk", ours & known & ~same_chunk)
            self._drop("wrong_source", ours & known & same_chunk & ~from_server)
        direct = (headers["flags"] & _DIRECT_FLAG) != 0
        states = taken & (kind == _STATE)
        results = taken & ~states
        for of_server, stage in ((False, WAITING), (True, DIRECT)):
            candidates = results & direct if of_server else results & ~direct
            if candidates.all():
                self._on_results(now, batch, rows, stage)
            elif candidates.any():
                self._on_results(now, batch.select(candidates), rows[candidates], stage)
        if states.any():
            self._on_states(now, headers[states], rows[states], direct[states])

    def _take_plain(self, steps: NativeSteps, now: float, batch: Batch) -> bool:
        """Takes packets natively if all are plain results; returns whether they were."""
        taken = steps.receive(now, batch)
        if taken is None:
            return False
        rows, congested = taken
        self._statistics.congested += congested
        if self._congestion.adapts:
            self._congestion.on_results(rows, (batch.headers["flags"] & _ECN) != 0)
        self._complete(rows, batch.headers, batch.payloads, WAITING)
        return True

    def _on_results(self, now: float, batch: Batch, rows: Rows, stage: int) -> None:
        """Takes RESULTs for these rows, all DIRECT or none."""
        slots = self._slots
        good = (slots.stage[rows] == stage) & (slots.sent[rows] > 0)
        if not good.all():
            early = ~good & (slots.stage[rows] <= stage)
            self._drop("unexpected", early)
            self._statistics.duplicates += int(np.count_nonzero(~good & ~early))
        good = self._checked(now, batch, rows, stage, good)
        first = slots.first_of_each(rows[good])
        self._statistics.duplicates += int(np.count_nonzero(~first))
        good[good] = first
        if not good.all():
            batch, rows = batch.select(good), rows[good]
        if not len(rows):
            return
        headers, payloads = batch.headers, batch.payloads
        self._detector.on_results(now, rows, batch.full)
        marked = (headers["flags"] & _ECN) != 0
        self._statistics.congested += int(np.count_nonzero(marked))
        if self._congestion.adapts:
            self._congestion.on_results(rows, marked)
        if stage == WAITING:
            flagged = (headers["flags"] & _FLAGGED) != 0
            if flagged.any():
                self._to_server(rows[flagged])
                rows, headers, payloads = rows[~flagged], headers[~flagged], payloads[~flagged]
        self._complete(rows, headers, payloads, stage)

    def _checked(self, now: float, batch: Batch, rows: Rows, stage: int, good: Mask) -> Mask:
        """Returns those of `good` whose number of workers, lanes, exponent and checksum are
        right."""
        right: Mask = good.copy()
        for cause, failed in wrong(self._plan, self._slots, batch, rows, stage == DIRECT).items():
            failed &= good
            right &= ~failed
            if cause == "wrong_checksum":
                self._statistics.wrong_checksum += int(np.count_nonzero(failed))
            else:
                self._drop(cause, failed)
        if not right.all():
            self._failed(now, rows[good & ~right])
        return right

    def _to_server(self, rows: Rows) -> None:
        """Moves rows whose integer sum is flagged to DIRECT: their servers sum them in float32."""
        slots = self._slots
        slots.stage[rows] = DIRECT
        slots.restart(rows)
        slots.due[rows] = True
        slots.probe_pending[rows] = False

    def _failed(self, now: float, rows: Rows) -> None:
        """Handles failed checks: probes at the first failure of a row, reports the second."""
        slots = self._slots
        # Duplicates of one bad packet are one failure.
        rows = np.unique(rows[~slots.failed[rows]])
        slots.failed[rows] = True
        slots.failures[rows] += 1
        slots.probe_pending[rows[(slots.failures[rows] == 1) & ~slots.due[rows]]] = True
        for row in rows[slots.failures[rows] == 2].tolist():
            reason = "its sum failed the check twice"
            if slots.exponent_round[row]:
                reason = (
                    "its exponent round failed the check twice: corrupted, or the workers do not "
                    "submit the same chunks in the same order"
                )
            stream, seq = int(slots.stream_number[row]), int(slots.seq[row])
            self._failures.append(Failure(stream, seq, int(slots.chunk[row]), reason))

    def _on_states(self, now: float, headers: Array, rows: Rows, direct: Mask) -> None:
        """Takes STATEs about these rows."""
        slots = self._slots
        stage = np.where(direct, np.uint8(DIRECT), np.uint8(WAITING))
        final = phases(headers) == _FINAL
        announced = final & ~direct & self._plan.pipeline.pulls
        good = (slots.stage[rows] == stage) & ((slots.probes[rows] > 0) | announced)
        good &= headers["sender"] < np.where(direct, 256, MOST_CHILDREN)
        good[good] = slots.first_of_each(rows[good])
        self._drop("unasked", ~good)
        slots.probe_pending[rows[good & announced]] = True
        good &= ~announced
        rows, headers, direct = rows[good], headers[good], direct[good]
        if not len(rows):
            return
        self._statistics.states += len(rows)
        self._detector.on_states(now, rows, headers, direct)

    def _drop(self, cause: str, packets: Mask) -> None:
        n = int(np.count_nonzero(packets))
        if n:
            self._statistics.dropped[cause] += n
