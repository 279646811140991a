# SPDX-License-Identifier: Apache-2.0
"""Traces a run in virtual time: workers by layer, links, and slots of switches.

Every node is a process of the trace. A worker has a thread for its computation, and one for each
layer: *send* lasts from the first bit of the layer's first contribution to the last bit of its last
one, *wait* from then until its last sum arrives; retransmissions count as waiting. A direction of a
link has two counters at the sender, utilization and queue length; a switch has a counter of slots
in use. Counters have one value for each of many short spans, where it changes.

All events follow from the times of packets, independent of batches and the order of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from controller.planning.tree import Tree
from hosts.data.chunks import Layout
from planner.link_loads import Direction
from protocol.header import Array
from simulation.links.link import Link
from simulation.links.trains import SECOND, Times
from simulation.network import Network
from simulation.tracing.events import TraceFile
from simulation.tracing.links import LinkTrace, span
from simulation.tracing.slots import SlotTrace
from simulation.tracing.workers import WorkerTrace

_FEW = 4096  # buffered events, and
_PACKETS = 1 << 14  # buffered packets of slots and queues
_ROUNDS = 64  # rounds of the engine between writes


class Tracer:
    """Traces a network that has not begun. Call `tick` periodically, and `close` at the end."""

    def __init__(self, file: TraceFile, network: Network) -> None:
        self._file, self._network = file, network
        self._rounds = 0
        topology = network.topology
        nodes = (*topology.workers, *topology.servers, *topology.switches)
        self._pids = {node.name: number for number, node in enumerate(nodes, 1)}
        for node in nodes:
            file.process(self._pids[node.name], node.name, node.kind)
        links = network.links()
        self._workers: dict[str, dict[int, WorkerTrace]] = {
            node.name: {} for node in topology.hosts
        }
        self._threads = len(nodes)  # last number of a thread
        self._slots = {
            node.name: SlotTrace(
                min(span(link) for way, link in links.items() if way.node == node.name),
                partial(self._counts, self._pids[node.name], "slots", "in use"),
            )
            for node in topology.switches
        }
        self._links: list[LinkTrace] = []
        self._at: dict[str, list[LinkTrace]] = {name: [] for name in self._workers}
        for way, receiver in network.receivers().items():
            one = self._link(way, receiver, links[way])
            self._links.append(one)
            for name in (way.node, receiver):
                if name in self._at:
                    self._at[name].append(one)

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
        """Adds an admitted job with its workers on `hosts`, by rank.

        sizes: elements of its parameters, by name and in order.
        layers: names of the parameters of each layer.
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
            # The first thread of a process has its number, so that viewers put it first; no other
            # number is there twice, as some know a thread by its own alone.
            several, pid = bool(self._workers[host]), self._pids[host]
            threads = [*range(self._threads + 1, self._threads + 1 + len(layers) + several)]
            self._threads += len(threads)
            one = WorkerTrace(
                self._file,
                self._network.hosts[host],
                pid,
                threads if several else [pid, *threads],
                list(layers),
                of_chunk,
                f" ({name})" if several else "",
                partial(self._catch_up, host),
            )
            self._workers[host][number] = one
            made.append(one)
        return made

    def tick(self) -> None:
        """Writes the settled events, every `_ROUNDS` calls."""
        self._rounds += 1
        if self._rounds % _ROUNDS:
            return
        if self._file.waiting > _FEW or sum(one.packets for one in self._links) > _PACKETS:
            self._settle(min(self._network.engine.settled(), self._waiting_since()))

    def close(self) -> None:
        """Writes the remaining events at the end of the run."""
        if self._file.closed:
            return
        self._settle(max((link.last for link in self._links), default=0) + SECOND)
        self._file.close()

    def _waiting_since(self) -> int:
        """Returns when the first of the packets came (ps) whose departure is not known yet."""
        network = self._network
        return min(
            [
                *(link.pending for link in network.links().values()),
                *(switch.lines.waiting_since() for switch in network.switches.values()),
            ]
        )

    def _settle(self, until: int) -> None:
        for link in self._links:
            link.settle(until)
            link.packets = 0
        for slots in self._slots.values():
            slots.settle(until)
        self._file.flush(until)

    def _catch_up(self, host: str) -> None:
        for link in self._at[host]:
            link.catch_up()

    def _link(self, way: Direction, receiver: str, link: Link) -> LinkTrace:
        name = f"{way.interface.removeprefix(way.node + '-')} to {receiver}"
        pid, step = self._pids[way.node], span(link)

        def busy(at: int, time: int, took: int) -> None:
            self._counts(pid, f"{name}, busy", "%", at, time, round(100 * took / step, 1))

        return LinkTrace(
            link,
            busy,
            partial(self._counts, pid, f"{name}, queued", "bytes"),
            _Ends(
                (self._workers.get(way.node, {}), self._workers.get(receiver, {})),
                (self._slots.get(way.node), self._slots.get(receiver)),
            ).look,
        )

    def _counts(self, pid: int, name: str, unit: str, at: int, time: int, value: float) -> None:
        self._file.counter(at, pid, name, time, unit, value)


class _Ends:
    """The observers of a direction of a link.

    workers: by the number of their job, and slots: of the sender and of the receiver.
    """

    def __init__(
        self,
        workers: tuple[dict[int, WorkerTrace], dict[int, WorkerTrace]],
        slots: tuple[SlotTrace | None, SlotTrace | None],
    ) -> None:
        self._senders, self._receivers = workers
        self._sender, self._receiver = slots

    def look(self, headers: Array, begins: Times, ends: Times, arrivals: Times) -> None:
        """Passes departing packets on to the observers (LinkTrace)."""
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
