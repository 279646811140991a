# SPDX-License-Identifier: Apache-2.0
"""Reads prices, and adds them up for a rack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from topologies.model.documents import load

__all__ = ["FILE", "Design", "Price", "Prices", "read"]

FILE = Path(__file__).with_name("prices.yaml")
_ASSUMED = "assumed"
_PORTS = {10: 2, 40: 1}  # of an adapter, by Gbit/s


class Price(BaseModel):
    """A price. source: ``assumed`` if nobody is cited."""

    model_config = ConfigDict(extra="forbid")

    what: str = Field(min_length=1)
    dollars: float = Field(ge=0, allow_inf_nan=False)
    source: str = Field(min_length=1)
    date: str

    @property
    def assumed(self) -> bool:
        """True if the price is assumed: it has no source."""
        return self.source == _ASSUMED


class Prices(BaseModel):
    """The file of prices."""

    model_config = ConfigDict(extra="forbid")

    gpu: Price
    nic_10: Price
    port_10: Price
    nic_40: Price
    port_40: Price
    machine: Price
    box: Price
    programmable: Price

    def items(self) -> dict[str, Price]:
        """Returns all prices by name."""
        return {name: getattr(self, name) for name in type(self).model_fields}

    def dollars(self) -> dict[str, float]:
        """Returns all dollars by name."""
        return {name: one.dollars for name, one in self.items().items()}


@dataclass(frozen=True)
class Design:
    """A rack.

    name: Of its points. title: On the page.
    workers, gpus: Workers, and GPUs of each.
    rate: Gbit/s of workers' links, 10 or 40.
    box_links: Links of a PBox, of the same rate; 0: there is none.
    sums: The switch sums.
    """

    name: str
    title: str
    workers: int
    gpus: int
    rate: int = 10
    box_links: int = 0
    sums: bool = False

    def dollars(self, prices: Mapping[str, float]) -> float:
        """Returns what the rack costs.

        Args:
            prices: Dollars, by name.
        """
        port = prices[f"port_{self.rate}"] + (prices["programmable"] if self.sums else 0.0)
        worker = prices["machine"] + self.gpus * prices["gpu"] + prices[f"nic_{self.rate}"] + port
        total = self.workers * worker
        if self.box_links:
            adapters = self.box_links / _PORTS[self.rate]
            total += prices["box"] + adapters * prices[f"nic_{self.rate}"]
            total += self.box_links * port
        return total


def read(path: Path = FILE) -> Prices:
    """Reads a file of prices. Raises ``DocumentError``."""
    return load(path, Prices).content
