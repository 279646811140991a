# SPDX-License-Identifier: Apache-2.0
"""What a run in virtual time did, as trace events: workers by layer, links, slots of switches.

Every node is a process of the trace. A worker has a thread for its computing, and one for each
layer: *send* is from the first bit of the layer's first contribution to the last bit of its last
one, *wait* from then until its last sum is there; what is sent again counts as waiting. A link's
direction is a counter of who sends, in percent of the rate; a switch counts the slots that are in
use. Of counters there is one number for each of many short spans of time, where it changes.

All of it follows from when packets leave and arrive, so it depends neither on how many of them are
handled at once nor on the order in which nodes run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from controller.tree import Tree
from hosts.chunks import Layout
from protocol.frames import OVERHEAD
from protocol.header import HEADER, HEADER_BYTES, SERVER_PORTS
from testbed.plans.expected import Direction
from testbed.virtual.links import Link
from testbed.virtual.network import Network
from testbed.virtual.queues import ETHERNET_HEADER
from testbed.virtual.sampling import Sampled
from testbed.virtual.slottrace import SlotTrace
from testbed.virtual.traceevents import TraceFile
from testbed.virtual.trains import SECOND, Train
from testbed.virtual.workertrace import WorkerTrace

_FRAMES = 16  # of the MTU: how long a counter's spans are
_FEW = 4096  # events that may wait before they are written
_ROUNDS = 64  # of the engine, from one look at what is certain to the next
_PORTS = np.array(SERVER_PORTS)


class Tracer:
    """Of a network that has not begun. `tick` is to be called again and again, `close` at last."""

    def __init__(self, file: TraceFile, network: Network) -> None:
        self._file, self._network = file, network
        self._rounds = 0
        topology = network.topology
        for order, node in enumerate((*topology.workers, *topology.servers, *topology.switches)):
            file.process(self._pid(node.name), node.name, node.kind, order)
        links = network.links()
        self._workers: dict[str, dict[int, WorkerTrace]] = {
            node.name: {} for node in topology.hosts
        }
        self._threads = dict.fromkeys(self._workers, 1)
        self._slots = {
            node.name: SlotTrace(
                min(_step(link) for way, link in links.items() if way.node == node.name),
                partial(self._counts, self._pid(node.name), "slots in use", "slots"),
            )
            for node in topology.switches
        }
        self._links = [
            self._link(way, receiver, links[way]) for way, receiver in network.receivers().items()
        ]

    def job(
        self,
        name: str,
        number: int,
        sizes: Mapping[str, int],
        layers: Mapping[str, Sequence[str]],
        lanes: int,
        workers: Sequence[str],
        trees: Sequence[Tree],
    ) -> list[WorkerTrace]:
        """A job that was admitted: its workers by rank, on these hosts.

        sizes: elements of its parameters, by name and in order; layers: which of these each has.
        """
        for tree in trees:
            for node in tree.switches:
                assert node.switch is not None
                self._slots[node.switch].watch(number, tree.stream, node.node)
        of_key = {key: layer for layer, keys in enumerate(layers.values()) for key in keys}
        layout = Layout(list(sizes.values()), lanes)
        of_chunk = np.repeat([of_key[key] for key in sizes], layout.counts)
        made = []
        for host in workers:
            thread = self._threads[host]
            label = f" ({name})" if thread > 1 else ""
            one = WorkerTrace(
                self._file,
                self._network.hosts[host],
                self._pid(host),
                thread,
                list(layers),
                of_chunk,
                label,
            )
            self._threads[host] += 1 + len(layers)
            self._workers[host][number] = one
            made.append(one)
        return made

    def tick(self) -> None:
        """Writes what is certain, now and then."""
        self._rounds += 1
        if self._rounds % _ROUNDS == 0 and self._file.waiting > _FEW:
            self._settle(self._network.engine.settled())

    def close(self) -> None:
        """Writes the rest: nothing happens any more."""
        if self._file.closed:
            return
        self._settle(max((link.last for link in self._links), default=0) + SECOND)
        self._file.close()

    def _settle(self, until: int) -> None:
        for link in self._links:
            link.settle(until)
        for slots in self._slots.values():
            slots.settle(until)
        self._file.flush(until)

    def _link(self, way: Direction, receiver: str, link: Link) -> _LinkTrace:
        name = f"{way.interface} to {receiver}"
        step = _step(link)

        def tell(at: int, time: int, busy: int) -> None:
            share = round(100 * busy / step, 1)
            self._counts(self._pid(way.node), name, "percent", at, time, share)

        return _LinkTrace(
            link,
            Sampled(step, tell),
            step,
            (self._workers.get(way.node, {}), self._workers.get(receiver, {})),
            (self._slots.get(way.node), self._slots.get(receiver)),
        )

    def _counts(self, pid: int, name: str, unit: str, at: int, time: int, value: float) -> None:
        self._file.counter(at, pid, name, time, unit, value)

    def _pid(self, node: str) -> int:
        """The process that a node is."""
        network = self._network
        return 1 + (network.switches.get(node) or network.hosts[node]).number


class _LinkTrace:
    """One direction: how much of its time it is busy, and who is told what passes.

    workers: by the number of their job, and slots: at either end. last: when something last left.
    """

    def __init__(
        self,
        link: Link,
        busy: Sampled,
        step: int,
        workers: tuple[dict[int, WorkerTrace], dict[int, WorkerTrace]],
        slots: tuple[SlotTrace | None, SlotTrace | None],
    ) -> None:
        self.last = 0
        self._link, self._busy, self._step = link, busy, step
        self._senders, self._receivers = workers
        self._sender, self._receiver = slots
        link.on_departure = self._departs

    def settle(self, until: int) -> None:
        """Nothing leaves before then that has not been told."""
        self._busy.advance(until // self._step)

    def _departs(self, train: Train) -> None:
        """Packets leave; times are those of their last bits."""
        ends, pace = train.times, self._link.pace
        self.last = int(ends[-1])
        sizes, kinds = np.unique(train.lengths, return_inverse=True)
        took = np.array([pace.time(pace.on_wire(size)) for size in sizes.tolist()])[kinds]
        begins = ends - took
        self._share(begins, ends)
        self._tell(train, begins)

    def _share(self, begins: np.ndarray, ends: np.ndarray) -> None:
        """A frame takes less than a span, so each is in one, or in two that follow each other."""
        busy, step = self._busy, self._step
        first, last = begins // step, (ends - 1) // step
        spans = np.concatenate((first, last))
        edge = np.where(first == last, ends, last * step)
        took = np.concatenate((edge - begins, ends - edge))
        which, where = np.unique(spans, return_inverse=True)
        sums = np.zeros(len(which), np.int64)
        np.add.at(sums, where, took)
        for span, added in zip(which.tolist(), sums.tolist(), strict=True):
            if added:
                busy.advance(span)
                busy.value += added

    def _tell(self, train: Train, begins: np.ndarray) -> None:
        if train.stored < OVERHEAD + HEADER_BYTES:
            return
        head = np.ascontiguousarray(train.frames[:, : OVERHEAD + HEADER_BYTES])
        ports = head[:, OVERHEAD - 8 : OVERHEAD - 4].copy().view(">u2")
        rows = np.isin(ports, _PORTS).any(axis=1)
        headers = head[rows, OVERHEAD:].copy().view(HEADER)[:, 0]
        begins, ends = begins[rows], train.times[rows]
        arrivals = ends + self._link.spec.delay
        for job, worker in self._senders.items():
            mine = headers["job"] == job
            worker.leaves(headers[mine], begins[mine], ends[mine])
        for job, worker in self._receivers.items():
            mine = headers["job"] == job
            worker.arrives(headers[mine], arrivals[mine])
        if self._sender is not None:
            self._sender.results(headers, begins)
        if self._receiver is not None:
            self._receiver.contributions(headers, arrivals)
            self._receiver.results(headers, arrivals)


def _step(link: Link) -> int:
    """ps of a counter's span."""
    pace = link.pace
    return _FRAMES * pace.time(pace.on_wire(link.spec.mtu + ETHERNET_HEADER))
