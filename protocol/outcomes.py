# SPDX-License-Identifier: Apache-2.0
"""Names of the data plane's counters: the outcomes of packets at a node (p4src/outcomes.p4)."""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """Indices of counter ``IngressPipeline.outcomes``."""

    FORWARDED = 0
    NOT_IPV4 = 1
    BAD_IPV4_CHECKSUM = 2
    TTL_EXPIRED = 3
    NO_ROUTE = 4
    SPOOFED_SOURCE = 5
    MALFORMED = 6
    NOT_A_CHILD = 7
    WRONG_SOURCE = 8
    WRONG_WORKERS = 9
    CLAIMED = 10
    ADDED = 11
    DUPLICATE = 12
    STALE = 13
    OTHER_CHUNK = 14
    REPLAYED = 15
    RESENT = 16
    PARTIAL_SENT = 17
    COMPLETED = 18
    RESULT_DOWN = 19
    RESULT_UNEXPECTED = 20
    RESULT_REJECTED = 21
    QUERY_ANSWERED = 22
    QUERY_PASSED_UP = 23
    QUERY_STALE = 24
    OVERFLOWED = 25
    IMPAIRED = 26


class Impaired(IntEnum):
    """Indices of ``IngressPipeline.arrival.impaired``, ``EgressPipeline.departure.impaired``."""

    LOST = 0
    DUPLICATED = 1
    REORDERED = 2
    CORRUPTED = 3
