# SPDX-License-Identifier: Apache-2.0
"""Chooses the exponent with which a chunk is quantised, round after round.

Every worker must derive the same exponent for the same round of a chunk, without a message for it.
So the policy depends only on what all workers share: the order in which chunks are submitted, and
the largest exponent that the results of completed rounds report.

- First contact: an exponent round learns the largest exponent M(0) over the workers; e(0) = M(0).
- Round t >= 1: e(t) = M(k) + headroom of round k = max(0, t - 1 - staleness), the last that is
  certainly complete everywhere.
- After a round that was all zero (M = NO_EXPONENT) the exponent stays as it was, 0 at first.

None of this depends on the number of workers, so the policy carries over when that changes: `world`
may be assigned. So may `codec`, before the first round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.codecs.registry import USUAL
from protocol.payloads import NO_EXPONENT, Exps

Rows = npt.NDArray[np.int64]

_UNREPORTED = np.int16(-(1 << 15))

# State of one chunk: number of complete results, and the exponent of its next round of data.
_STATE = np.dtype([("level", "<u4"), ("exponent", "<i2")])


class Exponents:
    """The policy's state for the chunks 0..n-1 of a job.

    A round of a chunk goes through `begin` (when it is submitted), `ready` and `exponents` (when it
    is quantised) and `complete` (when its sum has arrived).
    """

    def __init__(
        self, chunks: int, world: int, exponent_headroom: int = 2, staleness: int = 0
    ) -> None:
        if chunks < 0 or world < 1 or exponent_headroom < 0 or staleness < 0:
            raise ValueError(
                f"chunks {chunks}, exponent_headroom {exponent_headroom} and staleness {staleness}"
                f" must be at least 0 and world {world} at least 1"
            )
        self.chunks = chunks
        self.world = world
        self.exponent_headroom = exponent_headroom
        self.staleness = staleness
        self.codec = USUAL
        depth = staleness + 1
        self._contacted = np.zeros(chunks, np.bool_)
        self._first = np.zeros(chunks, np.int16)  # e(0)
        self._begun = np.zeros(chunks, np.int64)
        self._folded = np.zeros(chunks, np.int64)  # rounds that `_after` accounts for
        # By round mod depth: the exponent to use after that round, and what it reported.
        self._after = np.zeros((chunks, depth), np.int16)
        self._reported = np.full((chunks, depth), _UNREPORTED, np.int16)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the arrays by chunk for code that does `begin`, `ready`, `exponents` and
        `complete` in place; they are never replaced."""
        return {
            "contacted": self._contacted,
            "first": self._first,
            "after": self._after,
            "reported": self._reported,
            "begun": self._begun,
            "folded": self._folded,
        }

    def begin(self, chunks: Any) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """Opens the next round of each chunk; they must be distinct.

        Returns the round numbers (n,), and a mask of those that need an exponent round first.
        Raises what `checked` raises.
        """
        rows = self.checked(chunks)
        rounds = self._begun[rows]
        self._begun[rows] += 1
        return rounds, (rounds == 0) & ~self._contacted[rows]

    def checked(self, chunks: Any) -> Rows:
        """Returns the chunks of a submission (n,). Raises ValueError for an unknown or repeated
        one."""
        rows = np.asarray(chunks, np.int64)
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= self.chunks):
            raise ValueError(f"chunks must be in 0..{self.chunks - 1}, got {rows.tolist()}")
        ascending = bool((rows[1:] > rows[:-1]).all())  # as they nearly always are
        if not ascending and len(np.unique(rows)) != len(rows):
            raise ValueError("a chunk appears twice in one submission; submit its rounds in turn")
        return rows

    def contact(self, chunks: Any, max_exponents: Any) -> None:
        """Takes the results of exponent rounds."""
        rows = np.asarray(chunks, np.int64)
        found = np.asarray(max_exponents, np.int16)
        self._contacted[rows] = True
        self._first[rows] = np.where(found == NO_EXPONENT, 0, found)

    def contact_none(self) -> None:
        """Marks all chunks as needing no exponent round: nothing is quantised."""
        self._contacted[:] = True

    def rounds(self, chunks: Any) -> Rows:
        """Returns the number of each chunk's next round (n,)."""
        return self._begun[np.asarray(chunks, np.int64)]

    def ready(self, chunks: Any, rounds: Any) -> npt.NDArray[np.bool_]:
        """Returns a mask (n,) of these rounds whose exponent is known."""
        rows = np.asarray(chunks, np.int64)
        numbers = np.asarray(rounds, np.int64)
        # Rounds 1..staleness use M(0), which the exponent round has found already, yet they wait
        # for the data round: then there is one rule for the order of rounds.
        later = self._folded[rows] > np.maximum(0, numbers - 1 - self.staleness)
        return np.where(numbers == 0, self._contacted[rows], later)

    def exponents(self, chunks: Any, rounds: Any) -> Exps:
        """Returns the exponent (n,) of each of these rounds, which must be `ready`."""
        rows = np.asarray(chunks, np.int64)
        numbers = np.asarray(rounds, np.int64)
        source = np.maximum(0, numbers - 1 - self.staleness)
        after = self._after[rows, source % (self.staleness + 1)]
        return np.where(numbers == 0, self._first[rows], after)

    def complete(self, chunks: Any, rounds: Any, max_exponents: Any) -> None:
        """Takes the exponents that results of these rounds report; only unflagged or DIRECT results
        count."""
        rows = np.asarray(chunks, np.int64)
        depth = self.staleness + 1
        if depth == 1:  # rounds cannot overlap, so this is the next one to account for
            self._fold(rows, np.asarray(rounds, np.int64), np.asarray(max_exponents, np.int16))
            return
        self._reported[rows, np.asarray(rounds, np.int64) % depth] = np.asarray(
            max_exponents, np.int16
        )
        for _ in range(depth):
            at = self._folded[rows]
            reported = self._reported[rows, at % depth]
            known = reported != _UNREPORTED
            if not known.any():
                return
            here, at, reported = rows[known], at[known], reported[known]
            self._reported[here, at % depth] = _UNREPORTED
            self._fold(here, at, reported)

    def levels(self) -> npt.NDArray[np.uint32]:
        """Returns the number of complete results of each chunk (chunks,): 0, 1 after the exponent
        round, then one more for each round of data.

        Only without staleness are these the first ones; raises ValueError with it.
        """
        if self.staleness:
            raise ValueError(f"levels mean nothing with a staleness of {self.staleness}")
        return np.add(self._contacted, self._folded, dtype=np.uint32, casting="unsafe")

    def export(self) -> bytes:
        """Returns the state that a joining worker needs, for `restore`; 6 bytes per chunk.

        Raises ValueError while a round is begun and not complete, and with a staleness.
        """
        state = np.zeros(self.chunks, _STATE)
        state["level"] = self.levels()
        open_chunks = np.flatnonzero(self._begun != self._folded)
        if len(open_chunks):
            raise ValueError(
                f"chunk {open_chunks[0]} and {len(open_chunks) - 1} others have a round that is "
                "not complete; a worker can join only between rounds"
            )
        state["exponent"] = np.where(self._folded > 0, self._after[:, 0], self._first)
        return state.tobytes()

    def restore(self, exported: bytes) -> None:
        """Takes over another worker's exported state; rounds continue from there.

        Raises ValueError for a state of another number of chunks, and with a staleness.
        """
        if self.staleness:
            raise ValueError(f"a policy with a staleness of {self.staleness} takes over nothing")
        state = _exported(exported, self.chunks)
        self._contacted[:] = state["level"] > 0
        self._folded[:] = np.maximum(state["level"].astype(np.int64) - 1, 0)
        self._begun[:] = self._folded
        self._first[:] = state["exponent"]
        self._after[:, 0] = state["exponent"]
        self._reported[:] = _UNREPORTED

    def resume(self, exported: bytes) -> None:
        """Sets each chunk's next exponent to what it would have been in the job that exported its
        policy: that job continues in this one.

        Chunks without an exponent get theirs as usual. Call it before any round, or between two.
        Raises what `restore` raises, and ValueError while a round is begun and not complete.
        """
        self.export()
        state = _exported(exported, self.chunks)
        known = state["level"] > 0
        self._contacted |= known
        fresh = known & (self._folded == 0)
        self._first[fresh] = state["exponent"][fresh]
        self._after[known, 0] = state["exponent"][known]

    def _fold(self, rows: Rows, rounds: Rows, reported: Exps) -> None:
        """Derives the exponents after these rounds; all earlier rounds must be accounted for."""
        depth = self.staleness + 1
        least, most = self.codec.least_exponent, self.codec.most_exponent
        raised = np.clip(reported + self.exponent_headroom, least, most)
        silent = reported == NO_EXPONENT
        if silent.any():
            before = self._after[rows, (rounds - 1) % depth]
            raised = np.where(silent, np.where(rounds == 0, self._first[rows], before), raised)
        self._after[rows, rounds % depth] = raised
        self._folded[rows] = rounds + 1


def _exported(exported: bytes, chunks: int) -> npt.NDArray[Any]:
    """Parses an exported state to (chunks,) _STATE. Raises ValueError for another number of
    chunks."""
    if len(exported) != chunks * _STATE.itemsize:
        raise ValueError(
            f"{len(exported)} bytes are no state of {chunks} chunks, which takes "
            f"{chunks * _STATE.itemsize}"
        )
    return np.frombuffer(exported, _STATE)
