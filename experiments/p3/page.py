# SPDX-License-Identifier: Apache-2.0
"""The sections of the experiment's page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from experiments.common.declaration import Block, Plot, Results, Section, Table
from experiments.common.page import number
from experiments.common.sensitivity import Varied, sensitivity
from experiments.p3 import plots
from experiments.p3.figures import (
    PUBLISHED,
    gain,
    gains,
    overlap_bound,
    slice_times,
    software_gain,
)
from experiments.p3.jobs import (
    BASELINE,
    BYTESCHEDULER,
    FEW,
    FIFO,
    ITERATIONS,
    MESSAGE,
    P3,
    PLACEMENTS,
    SERVER_RATE,
)
from experiments.p3.models import MODELS, RESNET, SOCKEYE, VGG, line_seconds

__all__ = ["sections"]


def sections(results: Results) -> Sequence[Section]:
    """Returns the sections."""
    return list(_sections(results))


def _sections(results: Results) -> Iterator[Section]:
    yield _setting(results)
    yield _bandwidth(results)
    if not results.quick:
        yield _policies(results)
        yield _links(results)
    yield _slices(results)
    yield _placements(results)
    real = _small(results)
    if real is not None:
        yield real
    yield _assumed(results)


def _setting(results: Results) -> Section:
    return Section(
        "What is run",
        [
            "Four machines under one switch, each with a worker and a parameter server (`placement:"
            " cs`), 32 examples a worker, in virtual time: bytes on links, queues and waiting are"
            " simulated, computing takes the times below, and nothing else takes time. An iteration"
            " is the last but one of"
            f" {FEW if results.quick else ITERATIONS}, from the end of a forward pass to the end of"
            " the next: the first agrees on exponents, the second suffers from that, and the last"
            " has no next forward pass.",
            Table(
                ("policy", "job key `schedule`"),
                (
                    (
                        f"{BASELINE}: MXNet as in P3's artifact",
                        "`{order: fifo, slice: whole, assign: hashed, release: slice}`",
                    ),
                    (FIFO, "`{order: fifo, slice: 40000, release: slice}`"),
                    (P3, "`{order: priority, slice: 40000, release: slice}`, 8 classes"),
                    (
                        BYTESCHEDULER,
                        "`{order: credit, slice: 1000000, credit: 16 MB}`",
                    ),
                ),
                text=True,
            ),
            "MXNet has no windows, so those of the baseline and of slices in order hold more than"
            " the longest key; those of P3 have 256 chunks of 16 kB for each class (other windows:"
            " below). ByteScheduler's partitions are larger and are answered chunk by chunk. All"
            " slices but the baseline's are spread evenly over servers, as the artifact's go to"
            " them in turn. No policy pulls: servers send each sum to all workers at once, which"
            " P3's artifact has brought to MXNet. Hosts get 16 packets at a time, as network cards"
            " coalesce interrupts.",
        ],
    )


def _bandwidth(results: Results) -> Section:
    rows = []
    for model in MODELS:
        for rate, percent in gains(results, model):
            base, fast = (
                results.get("seconds", of="gain", model=model.name, rate=rate, policy=policy)
                for policy in (BASELINE, P3)
            )
            cells = (base * 1e3, fast * 1e3, line_seconds(model, rate) * 1e3, percent)
            bound = max(0.0, overlap_bound(model, rate))
            rows.append(
                (model.title, f"{rate:g}", *(f"{one:.1f}" for one in cells), f"{bound:.1f}")
            )
    blocks = [
        Plot(
            "gain",
            "P3's throughput over the baseline's, against bandwidth. The gain fades where links"
            " hardly matter and where they are all that matters.",
            partial(plots.draw_gains, results),
        )
    ]
    if not results.quick:
        blocks.append(
            Plot(
                "throughput",
                "Training throughput: P3 keeps it down to lower bandwidths.",
                partial(plots.draw_throughput, results),
            )
        )
    return Section(
        "Throughput against bandwidth",
        [
            *blocks,
            Table(
                (
                    *("model", "Gbit/s", "baseline ms", "P3 ms", "bytes on a link ms"),
                    *("gain %", "overlap alone %"),
                ),
                rows,
            ),
            "*Bytes on a link* is how long the bytes of one iteration take in each direction of a"
            " machine's link. *Overlap alone* is the gain if both policies used links fully: the"
            " baseline overlaps its bytes with the backward pass alone, P3 with both passes. What"
            " goes beyond is due to whole keys: while one arrives at a server nothing can be sent"
            " back, and servers get unequal shares. What is less is P3's own waiting (below, under"
            " the figures that fall short).",
        ],
    )


def _policies(results: Results) -> Section:
    rows = []
    for model in MODELS:
        found = {
            str(row.values["policy"]): row.measures["seconds"] * 1e3
            for row in results.all(of="gain", model=model.name, rate=model.rate)
        }
        cells = [
            f"{found[one]:.1f}" if one in found else ""
            for one in (BASELINE, FIFO, BYTESCHEDULER, P3)
        ]
        rows.append((f"{model.title}, {model.rate:g} Gbit/s", *cells))
    rate = VGG.rates[-1]
    sliced = gain(results, VGG, rate, FIFO)
    return Section(
        "Slices alone, and ByteScheduler's credit",
        [
            Table(("ms per iteration", BASELINE, FIFO, BYTESCHEDULER, P3), rows),
            f"Slices without priority gain {sliced:.1f} % for VGG-19 at {rate:g} Gbit/s; 49 % was"
            f" published (secondary: reading notes). Here computing takes {VGG.seconds * 1e3:.0f}"
            " ms (assumed), behind which even whole keys can hide at that rate: with less"
            " computing, or slower software, there is more to gain. ByteScheduler's partitions of"
            " 10^6 parameters hold an urgent key up for longer than slices do, and its credit"
            " bounds what overlaps.",
        ],
    )


def _links(results: Results) -> Section:
    return Section(
        "Use of a machine's link",
        [
            Plot(
                "links",
                "How busy the link of a machine is over one iteration of ResNet-50 at 4 Gbit/s,"
                " from the trace. With the baseline it idles during the forward pass.",
                partial(plots.draw_links, results),
            )
        ],
    )


def _slices(results: Results) -> Section:
    rows, beyond = [], []
    for model in MODELS:
        times = slice_times(results, model)
        least = min((seconds for _, seconds in times), default=0.0)
        for size, seconds in times:
            rows.append((model.title, f"{model.rate:g}", f"{size:,}", f"{seconds * 1e3:.1f}"))
            if (percent := 100 * (seconds / least - 1)) > plots.MOST_SHOWN:
                beyond.append(f" {model.title} takes {percent:.0f} % longer with {size:,}.")
    return Section(
        "Size of slices",
        [
            Plot(
                "slices",
                f"Time of an iteration with P3 against the size of slices.{''.join(beyond)}",
                partial(plots.draw_slices, results),
            ),
            Table(("model", "Gbit/s", "parameters of a slice", "ms per iteration"), rows),
            "Smaller slices than 12,000 parameters were run for ResNet-50 alone: they take longest"
            " to simulate, and bound all models alike. Iterations of P3 alternate between two"
            " durations, by half a percent, so smaller differences mean nothing."
            f" Here a message takes {MESSAGE * 1e6:g} us of each host that sends or receives it"
            " (assumed; `host_per_packet`), in addition to its bytes. That bounds slices below: a"
            " host spends longer on a message of few parameters than the link. Above, a server"
            " answers"
            " a slice when it is complete, and an urgent one waits for the one that is being"
            " sent, so"
            " long slices are less of a pipeline.",
        ],
    )


def _placements(results: Results) -> Section:
    rows: list[tuple[str, ...]] = []
    for rate in (VGG.rate,) if results.quick else (VGG.rate, VGG.rates[0]):
        base = results.get("seconds", of="gain", model=VGG.name, rate=rate, policy=BASELINE)
        rows.append((f"{rate:g}", f"{BASELINE} ({base * 1e3:.1f} ms), `cs`", "", "", "", ""))
        for placement in PLACEMENTS:
            found = {
                row.values["policy"]: row.measures["seconds"]
                for row in results.all(of="placement", rate=rate, placement=placement)
            }
            cells = [""] * 4
            for place, policy in enumerate((FIFO, P3)):
                if policy in found:
                    cells[2 * place] = f"{found[policy] * 1e3:.1f}"
                    cells[2 * place + 1] = f"{100 * (base / found[policy] - 1):.1f}"
            if found:
                rows.append((f"{rate:g}", f"`{placement}`", *cells))
    return Section(
        "With switches that sum",
        [
            Plot(
                "placements",
                "Time of an iteration of VGG-19 where servers share workers' machines (cs), have"
                " machines of their own (ncs), where the switch sums (inc), and where it sums for a"
                " server (inc-server).",
                partial(plots.draw_placements, results),
            ),
            Table(
                (
                    *("Gbit/s", "placement", "in order ms", "in order, gain %"),
                    *("P3 ms", "P3, gain %"),
                ),
                rows,
            ),
            "*In order* are slices without priority; gains are over the baseline: P3 alone is in"
            " the line of `cs`, switches alone are in order with `inc`, and both together are P3"
            " with `inc`. A machine whose switch sums sends its gradients once and"
            " gets sums once, and has no server to share its link with: 2/3 of the bytes that each"
            " direction carries with `cs`. `ncs` does the same with four more machines. At 15"
            " Gbit/s that is enough for computing to hide all of it, in any order; where bytes take"
            " longer than computing, priority adds to it.",
        ],
    )


def _small(results: Results) -> Section | None:
    """Returns the section on runs in real time, if there are any."""
    times = {
        (row.values["clock"], row.values["policy"]): row.measures for row in results.all(of="small")
    }
    if ("emulated", P3) not in times:
        return None
    rows, ratios = [], []
    for clock in ("virtual", "emulated"):
        base, fast = (times[clock, policy]["typical_s"] for policy in (BASELINE, P3))
        ratios.append(base / fast)
        bound = [times[clock, policy]["cpu_bound"] for policy in (BASELINE, P3)]
        said = "" if clock == "virtual" else "yes" if any(bound) else "no"
        rows.append((clock, f"{base * 1e3:.0f}", f"{fast * 1e3:.0f}", f"{base / fast:.2f}", said))
    return Section(
        "In real time",
        [
            "A small job, 0.66 MB in six keys, 10 Mbit/s, on an emulated testbed and in virtual"
            " time. Nothing is computed, so all keys are pushed at once, and what P3 gains is that"
            " slices are answered while others are on their way. Times are means of iterations"
            " but the first, without the quarter of the shortest and of the longest: with P3 they"
            " alternate between two durations in virtual time.",
            Table(("clock", "baseline ms", "P3 ms", "ratio", "cpu_bound"), rows),
            f"The ratios differ by {100 * abs(ratios[1] / ratios[0] - 1):.0f} %.",
        ],
    )


def _assumed(results: Results) -> Section:
    rows = [
        (f"time of an iteration, {model.title}", f"{model.seconds * 1e3:.1f} ms", model.source)
        for model in MODELS
    ]
    rows += [
        (
            "share of layers",
            "",
            "by multiplications, a third forward; Sockeye's, which depend on sentences, by weights"
            " without embeddings (assumed)",
        ),
        ("delay of a link, each way", "10 us", "assumed; a round trip takes 40 us and 16 packets"),
        ("slices, P3", "40,000", "artifact: its src/kvstore"),
        ("whole keys that are cut", "above 10^6", "artifact, baseline"),
        ("partition and credit, ByteScheduler", "10^6 and 4 x 10^6", "artifact: its documentation"),
    ]
    blocks: list[Block] = [
        "The paper does not say how long its models compute. Nothing is tuned to a gain. But the"
        " times derived from 4 Gbit/s are as long as the bytes take there, where overlap gains"
        " most, so the sensitivity below matters: half and twice these times, and, of Sockeye,"
        " half and twice the share of the forward pass. Sockeye's shares of layers are not varied.",
        Table(("parameter", "value", "from"), rows, text=True),
    ]
    if not results.quick:
        varied = [
            Varied(
                text,
                f"{model.title}, {model.rate:g} Gbit/s",
                partial(plots.varied_gain, results, model, parameter),
                PUBLISHED[model],
            )
            for parameter, text, models in (
                ("times", "time of an iteration", (RESNET, SOCKEYE, VGG)),
                ("forward", "share of the forward pass", (SOCKEYE,)),
            )
            for model in models
        ]
        software = [
            (f"{model.title}, {model.rate:g} Gbit/s", number(software_gain(results, model)))
            for model in (RESNET, SOCKEYE, VGG)
        ]
        windows = [
            (f"{row.values['window']:,}", f"{row.measures['seconds'] * 1e3:.1f}")
            for row in results.all(of="window")
        ]
        blocks += [
            *sensitivity(
                "P3's gain with half and twice the assumed times, and with a forward pass of half"
                " and twice a third of them; dotted: published.",
                "gain of P3 (%)",
                varied,
            ),
            f"With servers that handle {SERVER_RATE} Gbit/s (2 MB in 780 us, measured of MXNet by a"
            " user, [issue 14485](https://github.com/apache/mxnet/issues/14485)), each packet as it"
            " arrives:",
            Table(("model", "gain %"), software),
            "P3 with other windows, ResNet-50 at 4 Gbit/s (256 chunks above):",
            Table(("chunks in flight of each class", "ms per iteration"), windows),
        ]
    return Section("What is assumed", blocks)
