# SPDX-License-Identifier: Apache-2.0
"""Stores sums at their destinations and updates the exponents of the chunks' next rounds.

If servers optimize, each chunk's last result is also kept, in case all servers die.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.data.reports import Completed, Statistics, Sums
from hosts.native.quantization import keep_and_dequantise
from hosts.worker.epoch_transfer import kept, last_of
from hosts.worker.native_state import NativeState
from hosts.worker.slots import DIRECT, WAITING, Rows, Slots
from protocol import jobs_pb2
from protocol.exponents import Exponents
from protocol.header import HEADER, HEADER_BYTES, LANE, Array, Words, opaque
from protocol.payloads import Floats, floats_of
from protocol.plan import WorkerPlan


class Completion:
    """Completes the numbers in `slots`. sums: the entry of this plan in `statistics`."""

    def __init__(
        self,
        plan: WorkerPlan,
        slots: Slots,
        exponents: Exponents,
        statistics: Statistics,
        sums: Sums,
        native: NativeState | None,
    ) -> None:
        self._plan, self._slots, self._exponents = plan, slots, exponents
        self._native = native
        self._statistics, self._sums = statistics, sums
        self._completed: list[Completed] = []
        self._none = Completed.concatenate([], slots.width)
        held = exponents.chunks if plan.optimizer is not None else 0
        self._last_headers: Array = np.zeros(held, HEADER)
        self._last_words: Words = np.zeros((held, slots.width), LANE)

    def inherit(self, former: Completion) -> None:
        """Takes over the uncollected sums and last results of the previous epoch."""
        self._completed, former._completed = former._completed, []
        if self._plan.optimizer is not None:
            self._last_headers, self._last_words = former._last_headers, former._last_words

    def collect(self) -> Completed:
        """Returns the sums that arrived since the last call."""
        if not self._completed:
            return self._none
        completed = Completed.concatenate(self._completed, self._slots.width)
        self._completed = []
        return completed

    # -- last results -----------------------------------------------------------------------------

    def results(self, wants: Iterable[tuple[int, int]]) -> list[jobs_pb2.Result]:
        """Returns the results that lead to these (chunk, level). Raises KeyError, naming the chunk,
        for one that is not at hand."""
        if self._plan.optimizer is None:
            return kept(self._slots, wants)
        levels = self._exponents.levels()
        results = []
        for chunk, level in wants:
            if level == levels[chunk] > 1:
                header, words = self._last_headers[chunk], self._last_words[chunk]
                results.append(
                    jobs_pb2.Result(
                        chunk=chunk, level=level, header=header.tobytes(), payload=words.tobytes()
                    )
                )
            else:
                results += kept(self._slots, [(chunk, level)])
        return results

    def last_results(self) -> tuple[bytes, bytes]:
        """Returns headers and payloads of each chunk's last result."""
        return self._last_headers.tobytes(), self._last_words.tobytes()

    def keep(self, headers: bytes, payloads: bytes) -> None:
        """Takes `last_results` of another worker. Raises ValueError if they are inconsistent."""
        kept_headers, words = last_of(headers, payloads, self._exponents.levels())
        if words.shape != self._last_words.shape:
            raise ValueError(f"last results {words.shape}, of a job {self._last_words.shape}")
        self._last_headers, self._last_words = kept_headers, words

    def parameters(self) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Returns the last results (chunks, lanes), and the number of workers in each (chunks,)."""
        return floats_of(self._last_words), self._last_headers["workers"].astype(np.int64)

    # -- results that come ------------------------------------------------------------------------

    def take(self, rows: Rows, headers: Array, words: Any, stage: int) -> None:
        """Completes these rows with good results of this stage."""
        slots = self._slots
        native = self._native
        if native is not None and stage == WAITING and headers.strides[0] == HEADER_BYTES:
            self._take_natively(native, rows, headers, words)
            return
        slots.finish(rows)
        opaque(slots.result_headers)[rows] = opaque(headers)
        places = slots.places(rows)
        slots.submission[rows] = None
        found = slots.exponent_round[rows]
        if found.any():
            self._exponents.contact(slots.chunk[rows[found]], headers["max_exponent"][found])
            self._statistics.exponent_rounds += int(np.count_nonzero(found))
            rows, headers, words = rows[~found], headers[~found], words[~found]
            places = places.select(~found)
        if not len(rows):
            return
        initial = np.zeros(len(rows), np.bool_)
        if stage == DIRECT and self._plan.optimizer is not None:
            initial = slots.round[rows] == 0
        self._count(rows, headers, initial, stage)
        if stage == DIRECT or self._plan.optimizer is not None:
            slots.result_words[rows] = words
            places.put(floats_of(words))
        else:
            exponents, world = slots.exponent[rows], self._plan.world
            codec, keep = self._plan.codec, slots.result_words
            keep_and_dequantise(codec, words, exponents, world, places, keep, rows)
        chunks = slots.chunk[rows]
        self._exponents.complete(chunks, slots.round[rows], headers["max_exponent"])
        if self._plan.optimizer is not None:
            self._last_headers[chunks], self._last_words[chunks] = headers, words
        flags = headers["flags"].copy()
        workers = np.full(len(rows), self._plan.world)
        tickets = slots.ticket[rows]
        self._completed.append(Completed(tickets, chunks, places, flags, workers, slots.width))

    def _count(
        self, rows: Rows, headers: Array, initial: npt.NDArray[np.bool_], stage: int
    ) -> None:
        slots, plan, statistics = self._slots, self._plan, self._statistics
        done = int(np.count_nonzero(~initial))
        statistics.initial += len(rows) - done
        if stage == DIRECT and not plan.is_asynchronous:
            statistics.completed_direct += done
        else:
            statistics.completed += done
            self._sums.chunks += done
        if stage == WAITING:
            exponents, found = slots.exponent[rows], headers["max_exponent"]
            statistics.coarse += plan.codec.coarse(exponents, found, plan.world)
        if plan.is_asynchronous:
            ahead = (slots.round[rows] + 1 - headers["children"].astype(np.int64))[~initial]
            statistics.ahead += int(ahead.sum())
            statistics.most_ahead = max(statistics.most_ahead, *ahead.tolist(), 0)

    def _take_natively(self, native: NativeState, rows: Rows, headers: Array, words: Any) -> None:
        """Does the same natively, for integer sums."""
        slots, world = self._slots, self._plan.world
        places = slots.places(rows)
        slots.submission[rows] = None
        taken = native.take(rows, headers)
        done = len(taken.rows)
        if len(taken.found):
            self._exponents.contact(taken.found, taken.exponents)
            self._statistics.exponent_rounds += len(taken.found)
        if not done:
            return
        self._statistics.completed += done
        self._sums.chunks += done
        self._statistics.coarse += taken.coarse
        if done < len(rows):
            places = places.select(taken.places)
        if slots.width and not native.keep_sums(rows, words):
            data = words if done == len(rows) else words[taken.places]
            exponents, keep = slots.exponent[taken.rows], slots.result_words
            codec = self._plan.codec
            keep_and_dequantise(codec, data, exponents, world, places, keep, taken.rows)
        workers = np.full(done, world)
        self._completed.append(
            Completed(taken.tickets, taken.chunks, places, taken.flags, workers, slots.width)
        )
