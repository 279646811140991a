# SPDX-License-Identifier: Apache-2.0
"""Explains why a job waits, from what its workers know of their oldest chunks.

A node that still sums answers a QUERY with the children whose contributions it has (STATE); one
that is PARTIAL forwards the QUERY to its parent, so a reply from above implies that state. With
each worker's own state this covers every node of a tree, without querying any switch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.planning.tree_planner import Child, Tree, TreeNode
from hosts.worker.explanation import Outline, StreamOutline, Waiting
from observability.messages.waiting import (
    Activity,
    ChunkState,
    Explanation,
    NodeState,
    WorkerState,
)
from protocol.header import Phase

# Number of RTOs after which a chunk is late, and its job waits.
LATE = 10
_DOING = {
    "stopped": "is stopped (SIGSTOP, or a debugger)",
    "ended": "has ended",
    "silent": "does not answer",
    "starts": "is starting",
}
_DIRECT = "direct sum"


@dataclass(frozen=True)
class _Fact:
    """State of a node in its last reply, `heard` seconds ago to the worker `told`.

    children: bits of the contributions that it has.
    """

    phase: Phase
    children: int | None
    heard: float
    told: str


def after(number: int, other: int) -> int:
    """Returns how far a sequence number is after another, negative if before (RFC 1982)."""
    return (number - other + (1 << 31)) % (1 << 32) - (1 << 31)


class _Number:
    """One sequence number of a stream, as all workers see it.

    open: what each worker without a result knows of it, by worker.
    to_come: workers that have not reached it.
    unknown: workers whose view is missing.
    """

    def __init__(
        self, workers: Mapping[str, Activity], views: Mapping[str, StreamOutline], oldest: Waiting
    ) -> None:
        self.workers = workers
        self.oldest = oldest
        seq = oldest.seq
        self.open: dict[str, Waiting] = {}
        self.to_come: set[str] = set()
        for name, view in views.items():
            mine = next((one for one in view.oldest if one.seq == seq), None)
            if mine is not None:
                self.open[name] = mine
            elif after(seq, view.following) >= 0:
                self.to_come.add(name)
        self.unknown = set(workers) - set(views)

    @property
    def direct(self) -> bool:
        """True if its server sums it in float32."""
        return any(one.kind == _DIRECT for one in self.open.values())

    def age(self, names: Iterable[str]) -> float | None:
        """Returns the seconds since the first of these workers sent it; None if none has."""
        sent = [self.open[name].sent_first for name in names if name in self.open]
        return max((one for one in sent if one is not None), default=None)


class _Explained:
    """A sequence number on its tree: the state of each node, and what each waits for."""

    def __init__(
        self, number: _Number, nodes: Sequence[TreeNode], place: Callable[[TreeNode], str],
        stuck: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._number = number
        self._nodes = {node.node: node for node in nodes}
        self._root = nodes[0]
        self._place = place
        self._stuck = stuck
        self._facts: dict[int, _Fact] = {}
        for node in nodes:
            for child in node.children:
                if child.rank is not None:
                    self._take(child.name, node)

    def _take(self, worker: str, node: TreeNode) -> None:
        """Derives states of nodes from the last reply to a worker below ``node``."""
        mine = self._number.open.get(worker)
        if mine is None or mine.heard is None or mine.phase is None:
            return
        if (mine.kind == _DIRECT) != self._number.direct:
            return
        heard = mine.heard
        at: TreeNode | None = node
        while at is not None and at.node != mine.node:  # it forwarded the QUERY
            self._know(at.node, _Fact(Phase.PARTIAL, at.full, heard, worker))
            at = self._nodes.get(at.parent.node) if at.parent is not None else None
        if at is not None:
            self._know(at.node, _Fact(Phase[mine.phase], mine.children, heard, worker))

    def _know(self, node: int, fact: _Fact) -> None:
        known = self._facts.get(node)
        if known is None or fact.heard < known.heard:
            self._facts[node] = fact

    def missing(self, node: TreeNode) -> list[Child]:
        """Returns the children whose contributions are missing."""
        fact = self._facts.get(node.node)
        if fact is None:
            return [child for child in node.children if self._lacks(child)]
        if fact.phase is not Phase.AGGREGATING or fact.children is None:
            return []
        return [child for child in node.children if not fact.children >> child.sender & 1]

    def _lacks(self, child: Child) -> bool:
        """Returns whether a child may not have sent it, as far as the workers know."""
        if child.rank is not None:
            return child.name in self._number.to_come | self._number.unknown
        node = self._nodes[child.node]
        fact = self._facts.get(child.node)
        if fact is not None:
            return fact.phase is Phase.AGGREGATING
        return any(self._lacks(one) for one in node.children)

    def below(self, node: TreeNode) -> list[str]:
        """Returns the names of the workers below a node."""
        names: list[str] = []
        for child in node.children:
            names += [child.name] if child.rank is not None else self.below(self._nodes[child.node])
        return names

    def causes(self) -> list[str]:
        """Returns short texts of what is waited for, from the root down."""
        return list(dict.fromkeys(self._causes(self._root)))

    def _causes(self, node: TreeNode) -> list[str]:
        place, fact, missing = self._place(node), self._facts.get(node.node), self.missing(node)
        if place in self._stuck:
            return [f"{place} {self._stuck[place]}"]
        if missing:
            said = [f"{place} waits for {', '.join(child.name for child in missing)}"]
            for child in missing:
                said += self._of_child(place, child)
            return said
        if fact is not None and fact.phase is Phase.FINAL:
            return [f"{place} has the sum, which is not at {', '.join(self._number.open)}"]
        if fact is not None and fact.phase is Phase.PARTIAL:
            return [f"{place} waits for the result from above"]
        below = [child for child in node.children if child.rank is None]
        said = [text for one in below for text in self._causes(self._nodes[one.node])]
        asked = sum(
            self._number.open[name].unanswered_queries
            for name in self.below(node)
            if name in self._number.open
        )
        return [*said, f"nothing is known of {place}: {asked} queries are unanswered"]

    def _of_child(self, place: str, child: Child) -> list[str]:
        if child.rank is None:
            fact = self._facts.get(child.node)
            if fact is not None and fact.phase is not Phase.AGGREGATING:
                return [f"what {child.name} sent is not at {place}"]
            return self._causes(self._nodes[child.node])
        mine = self._number.open.get(child.name)
        if mine is not None and mine.sent_last is not None:
            times = "once" if mine.sent == 1 else f"{mine.sent} times"
            ago = f"{mine.sent_last:.1f} s ago"
            return [f"{child.name} has sent it {times}, last {ago}: it is not at {place}"]
        return [f"{child.name} {doing(self._number.workers[child.name])}"]

    def row(self, node: TreeNode) -> NodeState:
        """Returns the row of a node."""
        fact, missing = self._facts.get(node.node), self.missing(node)
        names = [child.name for child in node.children]
        absent = [child.name for child in missing]
        return {
            "node": self._place(node),
            "phase": fact.phase.name if fact is not None else None,
            "in": [name for name in names if name not in absent] if fact is not None else None,
            "missing": absent,
            "seconds": self._number.age(self.below(node)),
            "told": fact.told if fact is not None else None,
            "heard": fact.heard if fact is not None else None,
            "stuck": self._stuck.get(self._place(node)),
        }


def doing(worker: Activity) -> str:
    """Describes what a worker does, as a predicate to its name."""
    known = _DOING.get(worker.doing)
    if known is not None:
        return known
    if worker.outline is not None and worker.outline.frozen:
        return f"is held for a change of plan ({worker.seconds:.1f} s)"
    what = "waits for sums" if worker.doing == "waits" else worker.doing
    return f"{what} ({worker.seconds:.1f} s)"


def explain(
    workers: Sequence[Activity],
    trees: Sequence[Tree] | None,
    server_of: Callable[[int], str],
    stuck: Mapping[str, str],
    change: str = "",
) -> Explanation:
    """Returns whether and why a job waits.

    workers: by rank.
    trees: of the newest epoch; None if they are unknown.
    server_of: returns the name of a chunk's server.
    stuck: what is wrong with switches and servers, by name.
    change: what a change of epoch under way waits for; empty if there is none.
    """
    by_name = {worker.worker: worker for worker in workers}
    newest = max((one.outline.epoch for one in workers if one.outline), default=0)
    outlines: dict[str, Outline] = {
        name: one.outline
        for name, one in by_name.items()
        if one.outline and one.outline.epoch == newest
    }
    by_stream: dict[int, dict[str, StreamOutline]] = {}
    for name, outline in outlines.items():
        for stream in outline.streams:
            by_stream.setdefault(stream.stream, {})[name] = stream
    planned = {tree.stream: tree for tree in trees or ()}
    chunks = [
        _chunk(by_name, views, newest, planned.get(number), server_of, stuck)
        for number, views in sorted(by_stream.items())
        if any(view.oldest for view in views.values())
    ]
    chunks.sort(key=lambda chunk: -(chunk["seconds"] or 0.0))
    late = [chunk for chunk in chunks if chunk["late"]]
    held = [name for name, outline in outlines.items() if outline.frozen]
    reasons = [text for chunk in late for text in chunk["causes"]]
    if late and held:
        reasons.insert(0, f"held for a change of plan: {', '.join(held)}")
    if change:
        reasons.insert(0, change)
    return {
        "waits": bool(late or change),
        "seconds": max((chunk["seconds"] or 0.0 for chunk in chunks), default=0.0),
        "reason": "; ".join(dict.fromkeys(reasons)),
        "change": change,
        "epoch": newest,
        "chunks": chunks,
        "workers": [_row(worker, chunks) for worker in workers],
    }


def _chunk(
    workers: Mapping[str, Activity],
    views: Mapping[str, StreamOutline],
    epoch: int,
    tree: Tree | None,
    server_of: Callable[[int], str],
    stuck: Mapping[str, str],
) -> ChunkState:
    """Explains the oldest sequence number of a stream."""
    firsts = [view.oldest[0] for view in views.values() if view.oldest]
    oldest = firsts[0]
    for one in firsts:
        if after(one.seq, oldest.seq) < 0:
            oldest = one
    number = _Number(workers, views, oldest)
    server = server_of(oldest.chunk)
    nodes: Sequence[TreeNode] = tree.nodes if tree is not None else ()
    if number.direct:
        nodes = [_direct_root(tree)] if tree is not None else ()
    explained = _Explained(number, nodes, lambda n: n.switch or server, stuck) if nodes else None
    seconds = number.age(workers)
    timeouts = [
        (mine.sent_first or 0.0) / views[name].timeout for name, mine in number.open.items()
    ]
    return {
        "chunk": oldest.chunk,
        "stream": oldest.stream,
        "seq": oldest.seq,
        "epoch": epoch,
        "kind": _DIRECT if number.direct else oldest.kind,
        "seconds": seconds,
        "timeouts": max(timeouts),
        "late": max(timeouts) >= LATE,
        "open": max(view.open for view in views.values()),
        "causes": explained.causes()
        if explained
        else [f"the trees of plan epoch {epoch} are unknown"],
        "nodes": [explained.row(node) for node in nodes] if explained else [],
    }


def _direct_root(tree: Tree) -> TreeNode:
    """Returns the server that sums a chunk in float32 as a node whose children are all workers."""
    leaves = [child for _, (_, child) in sorted(tree.leaves.items())]
    children = [
        Child(rank % 32, leaf.name, rank, 0, 1, leaf.address, 0, "")
        for rank, leaf in enumerate(leaves)
    ]
    return TreeNode(0, None, tree.root.servers, tuple(children), None)


def _row(worker: Activity, chunks: Sequence[ChunkState]) -> WorkerState:
    """Returns what a worker does, and what it last sent for the oldest chunk without a result."""
    row: WorkerState = {
        "worker": worker.worker,
        "doing": worker.doing,
        "seconds": worker.seconds,
        "iteration": worker.iteration,
        "says": doing(worker),
        "last": None,
        "ago": None,
        "sent": None,
    }
    if worker.outline is None:
        return row
    wanted = {(chunk["stream"], chunk["seq"]) for chunk in chunks[:1]}
    for stream in worker.outline.streams:
        for one in stream.oldest:
            if (one.stream, one.seq) in wanted and one.sent_last is not None:
                asked, sent = one.asked_last, one.sent_last
                query = asked is not None and asked < sent
                row["last"], row["ago"] = ("QUERY", asked) if query else ("CONTRIBUTE", sent)
                row["sent"] = one.sent
    return row


def sentences(job: str, found: Explanation) -> list[str]:
    """Formats a result of ``explain`` as lines of a log."""
    if not found["waits"]:
        if found["workers"] is None:
            return [f"{job}: all members have joined and have its plan; no more is known"]
        if not found["chunks"]:
            return [f"{job} does not wait: no chunk is in flight"]
        oldest = found["chunks"][0]
        return [
            f"{job} does not wait: its oldest chunk has been in flight for"
            f" {oldest['seconds'] or 0.0:.3f} s ({oldest['timeouts']:.1f} timeouts)"
        ]
    waits = f"has waited for {found['seconds']:.1f} s" if found["seconds"] else "waits"
    lines = [f"{job} {waits}: {found['reason']}"]
    for chunk in found["chunks"]:
        if chunk["late"]:
            lines.append(heading(chunk))
            lines += [f"  {_node_text(row)}" for row in chunk["nodes"]]
    return lines


def heading(chunk: ChunkState) -> str:
    """Returns a heading that identifies a chunk."""
    more = f", {chunk['open'] - 1} more after it" if chunk["open"] > 1 else ""
    return (
        f"chunk {chunk['chunk']} ({chunk['kind']}, stream {chunk['stream']}, seq {chunk['seq']},"
        f" plan epoch {chunk['epoch']}){more}"
    )


def _node_text(row: NodeState) -> str:
    text = f"{row['node']}: {row['phase'] or 'not heard of'}"
    if row["stuck"]:
        text += f", {row['stuck']}"
    if row["seconds"] is not None:
        text += f", for {row['seconds']:.1f} s"
    if row["missing"]:
        text += f"; missing {', '.join(row['missing'])}"
    if row["in"]:
        text += f"; in {', '.join(row['in'])}"
    if row["heard"] is not None:
        text += f"; reported to {row['told']} {row['heard']:.1f} s ago"
    return text
