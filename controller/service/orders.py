# SPDX-License-Identifier: Apache-2.0
"""Executes the operator's orders from standard input, which need no job's nonce.

Each line is a JSON object with one of these fields, and is answered by a line on standard output,
in order: `done`, or `refused` and the reason.

    {"impair": [{"ends": ["tor0", "core0"], "loss": 0.1}]}

These links, both ways, lose, duplicate, reorder or corrupt packets with these probabilities instead
of the topology file's, and all others are as that one says (again).

    {"died": "s0", "how": "was killed by SIGKILL"}

The process of a switch or server has ended.

    {"stop": 3, "why": "stopped on request"}

Ends the job of that number as failed.

At the end of its input the controller goes on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from controller.jobs.job import JobError
from controller.jobs.registry import JobTable
from controller.p4rt.connection import SwitchError
from controller.p4rt.fabric import FabricError
from controller.service.notices import say

log = logging.getLogger(__name__)

LONGEST_WORDS = 200
IMPAIRMENTS = ("loss", "duplicate", "reorder", "corrupt")


class OrderError(ValueError):
    """A line that is no order; the text says what is allowed."""


def obey(table: JobTable, lines: Iterable[bytes]) -> None:
    """Executes orders and answers each on standard output, until the input ends."""
    for line in lines:
        if not line.strip():
            continue
        try:
            carry_out(table, line)
            answer = "done"
        except (OrderError, FabricError, SwitchError, JobError) as error:
            answer = f"refused {' '.join(str(error).split())}"
        except Exception as error:
            log.exception("an order could not be carried out")
            answer = f"refused {error!r}"
        say(answer)


def carry_out(table: JobTable, line: bytes) -> None:
    """Executes one order. Raises OrderError, FabricError, SwitchError, JobError."""
    read = table.clock()
    try:
        order = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise OrderError(f"an order is a JSON object on a line: {error}") from error
    match order:
        case {"impair": list(links), **rest} if not rest:
            table.outages.impair(dict(_impaired(link) for link in links))
        case {"died": str(name), "how": str(how), **rest} if not rest:
            if not table.fabric.addressing.known(name):
                raise OrderError(f"{name!r} is neither a switch nor a host or server process here")
            table.outages.died(name, _words(how), read)
        case {"stop": int(number), "why": str(why), **rest} if not rest:
            table.stop(number, _words(why))
        case _:
            raise OrderError(
                'an order is {"impair": [...]}, {"died": NODE, "how": WORDS} or {"stop": JOB,'
                ' "why": WORDS}'
            )


def _words(text: str) -> str:
    return " ".join(text.split())[:LONGEST_WORDS]


def _impaired(link: Any) -> tuple[frozenset[str], Mapping[str, float]]:
    match link:
        case {"ends": [str(a), str(b)], **given}:
            return frozenset((a, b)), {str(n): _probability(str(n), v) for n, v in given.items()}
    raise OrderError('a link to impair is {"ends": [NODE, NODE], "loss": PROBABILITY, ...}')


def _probability(name: str, value: object) -> float:
    if name not in IMPAIRMENTS:
        raise OrderError(f"{name!r} is none of {', '.join(IMPAIRMENTS)}")
    # Neither true nor NaN, which json takes for numbers.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise OrderError(f"{name} is a probability, 0 to 1, not {value!r}")
    return float(value)
