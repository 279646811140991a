# SPDX-License-Identifier: Apache-2.0
"""Tests terminal output at several widths and without a terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.status import Status

from cli.display.results import link_table, show_faults, show_links, show_results
from cli.display.tables import show_rows
from observability.progress_view import Meanwhile, View
from observability.wording import count, deviation
from simulation.running import run_virtually
from testbed.errors import LaunchError

REASON = "w2 is stopped (SIGSTOP, or a debugger); " * 5 + "no sum for 8.0 s"
ROWS = [
    {"job": "digits", "state": "failed", "iteration": 123456, "loss": 0.0123456, "reason": REASON},
    {"job": "digits-2", "state": "running", "iteration": 7, "loss": None, "reason": ""},
]
COLUMNS = {
    "job": "job",
    "state": "state",
    "iteration": "iteration",
    "loss": "loss",
    "reason": "why",
}


def console(width: int | None) -> Console:
    """A terminal of a width in columns, or none (a file or a pipe)."""
    if width is None:
        return Console(file=io.StringIO(), width=80, highlight=False)
    return Console(
        file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False
    )


def lines(of: Console) -> list[str]:
    assert isinstance(of.file, io.StringIO)
    return of.file.getvalue().splitlines()


def rendered(what: RenderableType, width: int) -> list[str]:
    of = console(width)
    of.print(what)
    return [line.rstrip() for line in lines(of)]


def job(**changes: Any) -> dict[str, Any]:
    """A job's part of a summary."""
    machine = {"cpu_busy": 0.42, "cpu_bound": False}
    chunks = {"aggregated_in_network": 91, "served_by_server": 9, "in_float32": 0, "unknown": ""}
    return {
        "job": "digits", "topology": "one-rack", "racks": 1, "workers": 4, "servers": 1,
        "target": "embedded", "clock": "emulated", "iterations": 10, "alongside": [],
        "seconds_per_iteration": [0.03, 0.02, 0.04], "test_accuracy": 0.96,
        "test_loss": 0.25, "test_bits": 0.36,
        "matches_reference": True, "chunks": {**chunks, "retransmitted": 0}, "machine": machine,
        "plans": [], **changes,
    }  # fmt: skip


def link(sender: str, receiver: str, carried: int, wanted: int | None) -> dict[str, Any]:
    sizes = {"bytes": carried, "expected_bytes": wanted, "dropped": 0}
    return {"from": sender, "to": receiver, **sizes}


LINKS = [link("w0", "tor0", 5_000_000, 5_000_000), link("tor0", "s0", 39_528, 0)]


def test_the_median_of_an_even_number_of_iterations_is_between_the_middle_two() -> None:
    out = console(None)
    show_results(out, [job(seconds_per_iteration=[0.04, 0.01, 0.02, 0.03])], LINKS)
    (line,) = [text for text in lines(out) if text.startswith("time per iteration")]
    assert line.split("  ")[-1].strip() == "25 ms (median)"


def test_queue_drops_are_shown_with_worst_link() -> None:
    none, some = console(None), console(None)
    show_results(none, [job()], [{**one, "dropped": 0} for one in LINKS])
    show_results(
        some, [job()], [{**one, "dropped": n} for one, n in zip(LINKS, (3, 1200), strict=True)]
    )
    assert not [line for line in lines(none) if "dropped" in line]
    result = "Full queues dropped 1,203 frames, most of them (1,200) from tor0 to s0."
    assert result in lines(some)


def test_two_iterations_are_shown_separately() -> None:
    out = console(None)
    show_results(out, [job(seconds_per_iteration=[0.04, 0.01])], LINKS)
    (line,) = [text for text in lines(out) if text.startswith("time per iteration")]
    assert line.split("  ")[-1].strip() == "40 ms, 10 ms"


def test_racks_share_rows_where_they_are_many_and_the_worst_link_still_shows() -> None:
    def shown(racks: int) -> list[str]:
        ups = [link(f"w{rack}", f"tor{rack}", 4_000_000, 4_000_000) for rack in range(racks)]
        cores = [link(f"tor{rack}", "core0", 4_000_000, 4_000_000) for rack in range(racks)]
        return rendered(link_table([*ups, *cores[:-1], {**cores[-1], "bytes": 5_000_000}]), 80)

    few, many = shown(3), shown(64)
    assert [line.split("  ")[0] for line in few[-3:]] == [f"tor{n} to core0" for n in range(3)]
    assert [line.split() for line in many[1:]] == [
        ["w0..w63", "to", "tor0..tor63", "4", "MB", "4", "MB", "0", "%"],
        ["tor0..tor63", "to", "core0", "4..5", "MB", "4", "MB", "+25.00", "%"],
    ]


def test_without_a_terminal_nothing_is_cut_and_no_line_ends_in_blanks() -> None:
    piped = console(None)
    show_rows(piped, ROWS, COLUMNS)
    show_results(piped, [job(job=f"job-{number}" * 3) for number in range(6)], LINKS)
    text = lines(piped)
    assert text[1].endswith(REASON)
    assert [line for line in text if line != line.rstrip()] == []
    heading = next(line for line in text if "job-0job-0" in line)
    assert "job-5job-5job-5" in heading


@pytest.mark.parametrize("width", [40, 70, 120])
def test_on_a_narrow_terminal_rows_become_blocks_with_whole_values(width: int) -> None:
    terminal = console(width)
    show_rows(terminal, ROWS, COLUMNS)
    text = lines(terminal)
    assert max(map(cell_len, text)) <= width
    words = " ".join(" ".join(text).split())
    for whole in ("digits-2", "123456", "0.01235", "failed", "running"):
        assert whole in words
    assert "".join(REASON.split()) in "".join(words.split())


def test_columns_without_a_value_are_left_out() -> None:
    terminal = console(70)
    show_rows(terminal, [{**ROWS[1], "loss": 0.5}], COLUMNS)
    assert lines(terminal)[0].split() == ["job", "state", "iteration", "loss"]


@pytest.mark.parametrize("width", [60, 70, 80, 120])
def test_the_live_view_keeps_its_heading_on_one_line(width: int) -> None:
    view = View(console(width))
    with view:
        view.event({"event": "starting", "job": "digits"})
        starting = rendered(view.picture(), width)
        view.event(
            {"event": "progress", "job": "digits", "iteration": 93, "iterations": 100,
             "passes": 33.0, "loss": 0.0913, "accuracy": 0.969, "chunks_per_second": 1234.5,
             "share_in_network": 1.0}
        )  # fmt: skip
        heading, row = rendered(view.picture(), width)
        view.event({"event": "waiting", "job": "digits", "seconds": 5, "why": REASON})
        waiting = rendered(view.picture(), width)
    assert starting[-1] == "digits: starting workers"
    assert heading.startswith("job ")
    assert "iteration" in heading
    assert "loss" in heading
    assert "0.0913" in row
    assert " 93/100" in row  # apart from the bar
    assert waiting[:2] == [heading, row]
    assert "digits: waiting for 5 s: w2 is stopped" in waiting[2]


def test_job_without_learning_shows_no_passes() -> None:
    result = {"event": "progress", "job": "sizes", "iteration": 1, "iterations": 4, "passes": 1.0}
    out = console(None)
    with View(out) as view:
        view.event({**result, "loss": None, "share_in_network": 1.0})
    assert lines(out) == ["sizes: iteration 1/4, in network 100.0 %"]


def test_cpu_bottleneck_is_reported() -> None:
    idle, bound = console(None), console(None)
    show_results(idle, [job()], LINKS)
    by = ["w2 waited for a CPU for 41% of the time"]
    machine = {"cpu_busy": 0.984, "cpu_bound": True, "cpu_bound_by": by}
    show_results(bound, [job(machine=machine)], LINKS)
    said = f"Times are this machine's, not the network's ({by[0]})."
    assert said not in " ".join(lines(idle))
    assert said in " ".join(lines(bound))
    (row,) = [line for line in lines(bound) if line.startswith("CPU busy")]
    assert row.split()[-2:] == ["98", "%"]


def test_bytes_of_chunks_in_float32_are_explained() -> None:
    plain, overflown = console(None), console(None)
    show_results(plain, [job()], LINKS)
    chunks = {**job()["chunks"], "in_float32": 9}
    show_results(overflown, [job(chunks=chunks)], LINKS)
    assert "float32" not in "\n".join(lines(plain))
    assert "9 chunks did not fit fixed point" in lines(overflown)[-1]


def test_links_of_a_host_that_has_several_to_a_switch_have_a_row_each() -> None:
    piped = console(None)
    rows = [link("w0", "tor0", 5_000_000, None), link("w1", "tor0", 6_000_000, None)]
    rows += [
        {**link(*ends, 1_000_000 * number, None), "interface": f"{ends[0]}-eth{number}"}
        for ends in (("s0", "tor0"), ("tor0", "s0"))
        for number in (1, 2)
    ]
    show_results(piped, [job()], rows)
    values = [line.split("  ")[0] for line in lines(piped)]
    wanted = ["s0-eth1", "s0-eth2", "tor0-eth1", "tor0-eth2"]
    assert [line.split()[0] for line in values if "eth" in line] == wanted
    assert "w0..w1 to tor0" in values


def test_missing_reference_is_explained() -> None:
    piped = console(None)
    show_results(piped, [job(matches_reference=None, no_reference="nobody counted")], LINKS)
    said = "digits: whether its weights are right is not known: nobody counted."
    assert said in lines(piped)


def test_chunks_without_payload_are_no_cause_for_alarm_and_idle_hosts_have_no_rows() -> None:
    piped = console(None)
    chunks = job(payload="none", matches_reference=None, no_reference="without payload")
    idle = [link("s0", "tor0", 0, 0), link("tor0", "s0", 0, 0)]
    show_results(piped, [chunks], [LINKS[0], *idle])
    text = "\n".join(lines(piped))
    assert "not known" not in text
    assert "digits: chunks only occupied the wire, so there are no sums to check." in text
    assert "What links carried in all, in 3 iterations, in frames without FCS:" in lines(piped)
    assert lines(piped)[-2:] == [
        "w0 to tor0     5 MB      5 MB         0 %",
        "Nothing went to or from s0.",
    ]


def test_iteration_progress_is_live_on_terminal_and_throttled_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker tells of an iteration when it is over, and of chunks a bit earlier."""
    within = {"event": "within", "job": "digits", "iterations": 3, "iterations_done": 1.4375,
              "virtual_seconds": 0.0947912, "wall_seconds": 65.2, "left_seconds": 73.1}  # fmt: skip
    result = "digits: iteration 2 of 3: 43 % of its chunks, at 94.79 ms of virtual time; 1.1 min so"
    terminal, piped = console(120), console(None)
    now = 1000.0
    monkeypatch.setattr("observability.progress_view.time.monotonic", lambda: now)
    with View(terminal) as live, View(piped) as plain:
        for view in (live, plain):
            view.event({"event": "running", "job": "digits"})
            view.event(within)
        _, row, note = rendered(live.picture(), 120)
        assert note.startswith(result)
        assert " 1/3" in row
        assert lines(piped) == ["digits: running"]
        for seconds in (9.0, 9.0):
            now += seconds
            plain.event(within)
    assert lines(piped)[1:] == [f"{result} far, about 1.2 min left"]


def test_meanwhile_is_live_on_terminal_and_throttled_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal, piped = console(60), console(None)
    now = 1000.0
    monkeypatch.setattr("observability.progress_view.time.monotonic", lambda: now)
    with Meanwhile(terminal) as live, Meanwhile(piped) as plain:
        for number in range(1, 5):
            now += 4.0
            live.tell(f"{number} of 4")
            plain.tell(f"{number} of 4")
            assert f"{number} of 4" in rendered(cast(Status, live._status).renderable, 60)[0]
    assert lines(piped) == ["    3 of 4"]  # after 12 s; the next would be after 22 s
    assert "\x1b[2K" in lines(terminal)[-1]  # erased


def test_virtual_seconds_are_marked(tmp_path: Path, runs: Path) -> None:
    """Of a job that waits, and in the end gives up, as its links lose nearly everything."""
    topology = "name: t\nracks: [{workers: 2, servers: 1}]\ncores: 0\ndefaults: {loss: 99 %}\n"
    job = "name: j\nworkload: layers\nlayers: [300 kB]\niterations: 1\npatience: 6\n"
    for name, text in (("t.yaml", topology), ("j.yaml", job)):
        (tmp_path / name).write_text(text)
    piped = console(None)
    with View(piped) as view, pytest.raises(LaunchError, match=r"up after 6 s\n\(in virtual time;"):
        run_virtually(tmp_path / "t.yaml", [tmp_path / "j.yaml"], view)
    assert any(line.startswith("j: waiting for 5 s of virtual time: w") for line in lines(piped))


def test_links_shared_with_other_job_are_marked() -> None:
    piped = console(None)
    unknown = [link("w0", "tor0", 5_000_000, None)]
    show_results(piped, [job(alongside=["other"])], unknown)
    assert lines(piped)[-1] == "These include what other sent meanwhile."
    assert not any("expected" in line for line in lines(piped))


def test_unknown_link_bytes_are_explained() -> None:
    piped = console(None)
    lost = {**link("tor0", "w0", 0, None), "bytes": None, "unknown": "tor0 has lost it"}
    show_results(piped, [job()], [*LINKS, lost])
    assert ["tor0", "to", "w0", "unknown"] in [line.split() for line in lines(piped)]
    assert lines(piped)[-1] == "unknown: tor0 has lost it."


@pytest.mark.parametrize(
    ("carried", "wanted", "text"),
    [
        (1000, 1000, "0 %"),
        (1010, 1000, "+1.00 %"),
        (990, 1000, "-1.00 %"),
        (10_000_074, 10_000_000, "+74 B"),
        (39_528, 0, "+39,528 B"),
    ],
)
def test_small_differences_are_shown_in_bytes(carried: int, wanted: int, text: str) -> None:
    assert deviation(link("a", "b", carried, wanted)) == text


def test_things_are_counted_in_english() -> None:
    assert count(1, "server") == "1 server"
    assert count(2, "switch", "switches") == "2 switches"


def test_jobs_that_do_not_fit_beside_each_other_are_shown_one_below_the_other() -> None:
    jobs = [job(job=f"job-{number}") for number in range(4)]
    wide, narrow = console(200), console(70)
    for of in (wide, narrow):
        show_results(of, jobs, LINKS)
    for of, tables in ((wide, 1), (narrow, 4)):
        assert sum(line.startswith("test accuracy") for line in lines(of)) == tables
        assert max(cell_len(line.rstrip()) for line in lines(of)) <= 120
        assert "one-rack, 1 rack" in "\n".join(lines(of))
    assert max(map(cell_len, lines(narrow))) <= 70


def test_a_table_of_many_rows_that_is_too_wide_is_one_of_some_columns_below_the_other() -> None:
    """Whoever compares rows sees them below each other, with the name of each beside them."""
    names = [f"column{number}" for number in range(12)]
    many = [{"name": f"row{n}", **{one: f"{one}-{n}" for one in names}} for n in range(3)]
    terminal = console(60)
    show_rows(terminal, many, {one: one for one in ("name", *names)})
    tables = "\n".join(line.rstrip() for line in lines(terminal)).split("\n\n")
    assert len(tables) > 1
    values = [table.split("\n") for table in tables]
    assert max(len(line) for table in values for line in table) <= 60
    assert [[line.split()[0] for line in table] for table in values] == [
        ["name", "row0", "row1", "row2"] for _ in values
    ]
    for n in range(3):
        found = [word for table in values for word in table[1 + n].split()[1:]]
        assert found == [many[n][one] for one in names]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_faults_are_one_table_that_fits_with_whole_texts(width: int) -> None:
    def fault(at: float, node: str, what: str, **changes: Any) -> dict[str, Any]:
        counts = {"aggregating": 143, "partial": 120, "resent_packets": 2257}
        epochs = {"epoch_before": 3, "epoch_after": 4, "resent_bytes": 2_478_186}
        times = {"seconds": 11.037, "rejoined_after": 13.2, "lasted": None}
        return {"at": at, "node": node, "what": what, **counts, **epochs, **times, **changes}

    unknown = dict.fromkeys(("seconds", "rejoined_after", "epoch_after", "resent_packets"))
    text = "lost its P4Runtime connection for 2 s"
    faults = [
        fault(12.033, "tor0-core0", text, **unknown, aggregating=None),
        fault(14.0, "w5", "was killed by SIGKILL", epoch_after=3),
    ]
    of = console(width)
    show_faults(of, cast(Any, faults))
    table = lines(of)[: lines(of).index(next(one for one in lines(of) if "went on: " in one))]
    assert max(map(cell_len, table)) <= width
    first = table[0].index("fault"), table[0].index("went on")
    assert " ".join(" ".join(line[slice(*first)] for line in table).split()) == (
        f"fault {text} was killed by SIGKILL"
    )
    cells = [line.split() for line in table]
    assert cells[0][0] == "at"  # one table: its heading is not repeated
    assert sum(line[:1] == ["at"] for line in cells) == 1
    assert any(line[:2] == ["12.0", "s"] and "None" not in line for line in cells)


def test_links_that_carried_nothing_are_a_sentence_not_an_empty_table() -> None:
    link = {"from": "w0", "to": "tor0", "bytes": 0, "expected_bytes": None, "dropped": 0}
    of = console(80)
    show_links(of, cast(Any, [link]), "since it came up")
    assert lines(of) == ["Links carried nothing since it came up."]


def test_spare_columns_are_left_out_before_a_table_is_split() -> None:
    rows = [{name: name * 20 for name in "abcd"}] * 3
    columns = {name: name for name in "abcd"}
    of = console(70)
    show_rows(of, rows, columns, spare="cb")
    assert [line.split() for line in lines(of)] == [
        ["a", "b", "d"],
        *[["a" * 20, "b" * 20, "d" * 20]] * 3,
    ]
