# SPDX-License-Identifier: Apache-2.0
"""What the switches did with packets, by their own counters, read over P4Runtime.

Any client may read (P4Runtime 1.3, section 5.3), so this is no business of the controller's, and
works when that one is stuck. The counters are the data plane's ``outcomes`` (p4src/outcomes.p4);
they do not tell jobs apart.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import grpc
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from controller.dataplane import DataPlane
from controller.trees import Tree
from protocol.outcomes import Outcome
from testbed.nodes.processes import ProcessError
from testbed.nodes.targets import DEVICE_ID, SwitchProcess

ANSWER_SECONDS = 5.0

Counts = dict[str, Counter[Outcome]]


async def read(
    switches: Iterable[SwitchProcess], dataplane: DataPlane, seconds: float | None = None
) -> tuple[Counts, list[ProcessError]]:
    """The counters of each switch by name, and an error for each that does not answer in time.

    Neither for one that refuses: it is being started again. seconds: ``ANSWER_SECONDS`` if None.
    """
    seconds = ANSWER_SECONDS if seconds is None else seconds
    chosen = list(switches)
    request = p4runtime_pb2.ReadRequest(
        device_id=DEVICE_ID, entities=[dataplane.p4info.counter_entry("outcomes")]
    )
    answers = await asyncio.gather(
        *(asyncio.to_thread(_read, switch.reached, request, seconds) for switch in chosen)
    )
    counts: Counts = {}
    silent = []
    for switch, answer in zip(chosen, answers, strict=True):
        if isinstance(answer, Counter):
            counts[switch.name] = answer
        elif answer is grpc.StatusCode.DEADLINE_EXCEEDED:
            assert switch.process is not None
            what = f"does not answer P4Runtime within {seconds:g} s"
            silent.append(ProcessError(switch.name, what, switch.process.log))
    return counts, silent


def _read(
    address: str, request: p4runtime_pb2.ReadRequest, seconds: float
) -> Counter[Outcome] | grpc.StatusCode:
    """The counters, or why they cannot be had."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            replies = p4runtime_pb2_grpc.P4RuntimeStub(channel).Read(request, timeout=seconds)
            cells = [entity.counter_entry for reply in replies for entity in reply.entities]
        except grpc.RpcError as error:
            return error.code()
    known = {int(outcome) for outcome in Outcome}
    return Counter(
        {
            Outcome(cell.index.index): int(cell.data.packet_count)
            for cell in cells
            if cell.index.index in known
        }
    )


def since(before: Counts, now: Counts) -> Counts:
    """What was counted after ``before``."""
    return {
        name: Counter({outcome: count - before[name][outcome] for outcome, count in counts.items()})
        for name, counts in now.items()
        if name in before
    }


def open_slots(counts: Counter[Outcome]) -> tuple[int, int]:
    """Slots of a switch that were AGGREGATING and PARTIAL when it had counted that.

    Each was claimed by one contribution, and left by another that completed the sum; a partial sum
    is left when the parent's result comes. Slots that a change of epoch gave up stay counted.
    """
    partial = counts[Outcome.PARTIAL_SENT] - counts[Outcome.RESULT_DOWN]
    ended = counts[Outcome.PARTIAL_SENT] + counts[Outcome.COMPLETED]
    return counts[Outcome.CLAIMED] - ended, partial


def switches_of(trees: Sequence[Tree]) -> set[str]:
    """Names of the switches that are nodes of these trees."""
    return {node.switch for tree in trees for node in tree.nodes if node.switch is not None}


def sums_made(trees: Sequence[Tree], counts: Mapping[str, Counter[Outcome]]) -> int:
    """How many rounds of a chunk the switches summed as far as the trees let them.

    Under a root that is a switch each round is COMPLETED there, once. Under a server each of the
    switches below it sends its PARTIAL_SENT sum up, once for each round; the least of them counts,
    for the trees that have the same ones (over several cores they have others).
    Exponent rounds, and sums that come back flagged, are rounds too.
    """
    roots = {tree.root.switch for tree in trees if tree.root.switch is not None}
    below = {
        frozenset(child.name for child in tree.root.children if child.rank is None)
        for tree in trees
        if tree.root.switch is None
    }
    completed = sum(counts[name][Outcome.COMPLETED] for name in roots)
    partial = sum(
        min((counts[name][Outcome.PARTIAL_SENT] for name in names), default=0) for names in below
    )
    return completed + partial


def sent_again(trees: Sequence[Tree], counts: Mapping[str, Counter[Outcome]]) -> int:
    """Packets that the switches of these trees sent again: results and partial sums."""
    return sum(
        counts[name][Outcome.REPLAYED] + counts[name][Outcome.RESENT] for name in switches_of(trees)
    )
