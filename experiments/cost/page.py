# SPDX-License-Identifier: Apache-2.0
"""The sections of the experiment's page, and its plot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.common.declaration import Plot, Results, Section, Table
from experiments.common.plots import panels
from experiments.cost.figures import designs, examples, gain, per_dollar
from experiments.cost.jobs import BOX, GPUS, SWITCH, WORKERS, models
from experiments.cost.prices import Prices, read
from observability import pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["sections"]

_FACTORS = (0.5, 2.0)
_SURCHARGE = 100.0  # dollars, in place of the factor on a price of 0


def sections(results: Results) -> Sequence[Section]:
    """Returns the sections."""
    prices = read()
    return [
        Section(
            "What is run",
            [
                f"A rack of {WORKERS} workers in virtual time, all links of 10 Gbit/s, or of 40:"
                " with a server process beside each worker (`placement: cs`), with a PBox of ten"
                " links (`ncs`), or with a switch that sums (`inc`). Software takes no time, so"
                " what differs is traffic: servers beside workers put 2 (N - 1) / N of the model on"
                f" each worker's link, the others once. A worker has {GPUS} GPUs (assumed), which"
                " compute as long as one does; times and batches of PHub's GPU are recalled.",
                "Dollars are those of workers with GPUs, adapters and switch ports, and of the PBox"
                " with its own. There is one rack, so no core links.",
            ],
        ),
        Section(
            "Prices",
            [
                Table(("", "", "$", "source", "date"), _prices(prices), text=True),
                "They are in `experiments/cost/prices.yaml`; change them there, and"
                " `rackhub experiment cost` only draws again.",
            ],
        ),
        Section(
            "Throughput per dollar",
            [
                Table(
                    ("model", "rack", "examples a second", "$", "per $1000", "over sharded"),
                    _rows(results, prices),
                ),
                "*Over sharded* is over servers beside workers with the same links. What pays"
                " depends on what bounds an iteration. Where links do, a PBox or a switch saves"
                " traffic, and faster links may bring more for their price than a PBox. Where"
                " computing does, nothing but the cheapest rack pays.",
            ],
        ),
        Section(
            "Sensitivity to prices",
            [
                Plot(
                    "sensitivity",
                    "Throughput per dollar over servers beside workers with the same links, with"
                    " each price halved (mark) and doubled. Dashed: PHub's 25 %.",
                    partial(_draw, results, prices),
                ),
                Table(
                    ("price", *(f"{one}, {two}" for one in ("PBox", "switch") for two in _ENDS)),
                    _sensitivity(results, prices),
                ),
                f"Of {models(results.quick)[0].title}. The price of a summing switch's port beyond"
                f" another's is 0 and cannot be doubled: the table has {_SURCHARGE:.0f} dollars for"
                " both. Half or twice the GPUs of a worker (assumed) change as much as half or"
                " twice a GPU's price. How throughput depends on times of computing (recalled) is"
                " [on another page](phub-throughput.md#what-is-assumed).",
            ],
        ),
    ]


_ENDS = ("halved", "doubled")


def _prices(prices: Prices) -> list[list[str]]:
    return [
        [
            *(f"`{name}`", one.what, f"{one.dollars:,.0f}"),
            *("**assumed**" if one.assumed else one.source, str(one.date)),
        ]
        for name, one in prices.items().items()
    ]


def _rows(results: Results, prices: Prices) -> list[list[str]]:
    dollars = prices.dollars()
    return [
        [
            *(model.title, design.title, f"{examples(results, model, design):,.0f}"),
            *(f"{design.dollars(dollars):,.0f}",),
            f"{per_dollar(results, model, design, dollars):.1f}",
            f"{gain(results, model, design, dollars):.2f}",
        ]
        for model in models(results.quick)
        for design in designs(results)
    ]


def _changed(prices: Prices, name: str, factor: float) -> dict[str, float]:
    """Returns dollars with one price times a factor."""
    dollars = prices.dollars()
    return {**dollars, name: dollars[name] * factor if dollars[name] else _SURCHARGE}


def _sensitivity(results: Results, prices: Prices) -> list[list[str]]:
    model = models(results.quick)[0]
    return [
        [
            f"`{name}`",
            *(
                f"{gain(results, model, design, _changed(prices, name, factor)):.3f}"
                for design in (BOX, SWITCH)
                for factor in _FACTORS
            ),
        ]
        for name in prices.dollars()
        if name not in ("nic_40", "port_40")
    ]


def _draw(results: Results, prices: Prices) -> Figure:
    shown = [name for name in prices.dollars() if name not in ("nic_40", "port_40")][::-1]
    found = models(results.quick)
    figure, every = panels(1, len(found), 0.9 + 0.3 * len(shown))
    for axes, model in zip(every, found, strict=True):
        for number, design in enumerate((BOX, SWITCH)):
            colour = pictures.COLOURS[number]
            middle = gain(results, model, design, prices.dollars())
            axes.axvline(middle, color=colour, linewidth=0.8)
            for place, name in enumerate(shown):
                ends = [gain(results, model, design, _changed(prices, name, f)) for f in _FACTORS]
                row = [place + 0.16 - 0.32 * number] * 2
                label = design.title if place == 0 else None
                axes.plot(ends, row, "-", color=colour, linewidth=3, label=label)
                axes.plot(ends[:1], row[:1], "o", color=colour, markersize=5)
        axes.axvline(1.25, color="#000000", linewidth=0.8, linestyle="--", label="PHub's 25 %")
        axes.set_yticks(range(len(shown)), shown)
        axes.set_title(model.title, loc="left")
        axes.set_xlabel("throughput per dollar, over sharded")
    figure.legend(*every[0].get_legend_handles_labels(), loc="outside upper right", ncols=3)
    return figure
