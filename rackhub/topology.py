# SPDX-License-Identifier: Apache-2.0
"""Topologies of racks, read from files or built from keywords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

import yaml
from typing_extensions import TypedDict

from rackhub.given import File, Text, dumped
from specs import shipped
from topologies.model import spec
from topologies.model.documents import errors_as
from topologies.model.drawing import draw
from topologies.model.topology import Link, Node
from topologies.model.topology import Topology as Model

Quantity: TypeAlias = str | float


class LinkFields(TypedDict, total=False):
    """Fields of links: quantities with units, or numbers in bit/s, seconds, bytes, or 0 to 1."""

    rate: Quantity
    """Bit/s."""
    delay: Quantity
    """Seconds; for virtual time alone."""
    queue_bytes: Quantity
    """Of the port that sends."""
    ecn_bytes: Quantity
    """Packets above this backlog are marked; 0: none. Default: half of the queue."""
    mtu: Quantity
    """Bytes of IP packets."""
    loss: Quantity
    """Share of packets that are lost; likewise below."""
    duplicate: Quantity
    reorder: Quantity
    corrupt: Quantity


class Topology:
    """Racks of workers and servers under top-of-rack switches, joined by core switches.

    Made by ``load`` or ``build``; immutable: ``replace`` returns another one. Notebooks show its
    drawing.
    """

    def __init__(self, given: Text) -> None:
        with File(Path(given.origin), given).blamed():
            self._model = spec.parse(given.text, given.origin)
        self._given = given

    @classmethod
    def load(cls, path: str | Path) -> Topology:
        """Reads a topology file, or a shipped one by its name, such as ``two-racks``.

        Raises:
            TopologyError: There is no such file, or it is invalid.
        """
        with errors_as(spec.TopologyError):
            file = shipped.find(path, "topologies")
        spec.load(file)  # for errors of the file itself
        return cls(Text(file.read_text(), str(file)))

    @classmethod
    def build(
        cls,
        name: str = "built",
        *,
        racks: int | Sequence[Mapping[str, int]] = 2,
        workers: int = 4,
        servers: int = 1,
        server_cores: int = 1,
        cores: int | Sequence[int | Mapping[str, int]] | None = None,
        link: Quantity | LinkFields | None = None,
        uplink: Quantity | LinkFields | None = None,
        links: Sequence[Mapping[str, object]] = (),
        costs: Mapping[str, object] | None = None,
        seed: int = 0,
    ) -> Topology:
        """Builds a topology of racks that are alike, or of those listed.

        Args:
            name: Its name.
            racks: Their number, or the racks that differ: ``[{}, {"workers": 8}]``.
            workers: Workers of each rack.
            servers: Servers of each rack.
            server_cores: Processes of each server, one on each core.
            cores: Core switches; a list: levels of them, ``[4, 2]``, or pods, ``[{"racks": 8,
                "cores": 2}, 4]``. Default: one if there are several racks.
            link: Every link: its rate, ``"10 Gbit/s"``, or several fields, ``{"rate": "10
                Gbit/s", "delay": "5 us"}``. Default: 20 Mbit/s.
            uplink: Links between switches, where they differ.
            links: Single links, where they differ, or further ones of servers: ``[{"ends": ["w0",
                "tor0"], "loss": "1 %"}]``.
            costs: Costs of switches and hosts in virtual time.
            seed: Draws which packets links lose, duplicate, reorder and corrupt.

        Raises:
            TopologyError: Lists all problems, by keyword.
        """
        rack = {"workers": workers, "servers": servers}
        rack |= {"server_cores": server_cores} if server_cores != 1 else {}
        keywords: dict[str, str] = {}
        if isinstance(racks, Sequence) and not isinstance(racks, str):
            listed = [{**rack, **one} for one in racks]
            own = [(n, name) for n, one in enumerate(racks) for name in rack if name not in one]
            keywords = {f"racks[{n}].{name}": name for n, name in own}
            cores = int(len(racks) > 1) if cores is None else cores
        else:
            listed = [{**rack, "count": racks}]
            keywords = {"racks[0].count": "racks", "racks[0].": ""}
            cores = int(racks != 1) if cores is None else cores
        content: dict[str, object] = {"name": name, "racks": listed, "cores": cores, "seed": seed}
        for keyword, field, given in (("link", "defaults", link), ("uplink", "uplinks", uplink)):
            if given is not None:
                content[field] = given if isinstance(given, Mapping) else {"rate": given}
                keywords |= {} if isinstance(given, Mapping) else {f"{field}.rate": keyword}
                keywords[field] = keyword
        content |= {"links": links} if links else {}
        content |= {"costs": costs} if costs is not None else {}
        return cls(Text(dumped(content), "Topology.build", keywords))

    @property
    def name(self) -> str:
        """Its name."""
        return self._model.name

    @property
    def model(self) -> Model:
        """Nodes, links and the quality of each direction, with queries."""
        return self._model

    @property
    def workers(self) -> tuple[Node, ...]:
        """Worker hosts, w0 first."""
        return self._model.workers

    @property
    def servers(self) -> tuple[Node, ...]:
        """Server hosts, s0 first."""
        return self._model.servers

    @property
    def switches(self) -> tuple[Node, ...]:
        """Top-of-rack switches, then cores from the lowest level up."""
        return self._model.switches

    @property
    def links(self) -> tuple[Link, ...]:
        """Links, with the quality of both directions."""
        return self._model.links

    def replace(self, **fields: object) -> Topology:
        """Returns it with fields of its file replaced, of groups those that are given.

        ``two_racks.replace(uplinks={"rate": "40 Mbit/s"}, seed=1)``

        Raises:
            TopologyError: It would be invalid.
        """
        content: dict[str, object] = yaml.safe_load(self.to_yaml())
        for name, value in fields.items():
            old = content.get(name)
            if isinstance(old, Mapping) and isinstance(value, Mapping):
                content[name] = {**old, **value}
            else:
                content[name] = value
        return Topology(Text(dumped(content), "Topology.replace", {}))

    def to_yaml(self) -> str:
        """Returns it as the content of a topology file."""
        return self._given.text

    def save(self, path: str | Path) -> None:
        """Writes it as a topology file."""
        Path(path).write_text(self.to_yaml())

    def written(self) -> AbstractContextManager[File]:
        """Returns a context with a file of it, whose errors are about what it was made of."""
        return self._given.written("topology.yaml")

    def draw(self) -> str:
        """Returns a drawing as SVG; of more than 5,000 hosts, of the first racks."""
        return draw(self._model)

    def _repr_svg_(self) -> str:
        return self.draw()

    def __repr__(self) -> str:
        counts = [f"{len(self.workers)} workers", f"{len(self.servers)} servers"]
        return f"<Topology {self.name}: {', '.join(counts)}, {len(self.switches)} switches>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and other.to_yaml() == self.to_yaml()

    def __hash__(self) -> int:
        return hash(self.to_yaml())
