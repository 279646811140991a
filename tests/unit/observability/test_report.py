# SPDX-License-Identifier: Apache-2.0
"""Tests that the page of a run is self-contained and shows its outcome, also of failures."""

from __future__ import annotations

import io
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console

from cli.display.results import show_results
from cli.main import main
from observability import record
from observability.progress import Iteration
from observability.record import RunDirectory, RunError
from observability.report import collect, make
from observability.report.charts import Axis, Line, Mark, chart
from observability.report.loads import loads
from observability.report.reading import submitted
from tests.unit.observability import small_run
from topologies.model.spec import load

pytestmark = pytest.mark.usefixtures("runs")
# Elements without an end (https://html.spec.whatwg.org/#void-elements).
SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "br", "hr", "img", "input", "link", "col"}


class Page(HTMLParser):
    """A page's elements: each with its attributes and all the text in it, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self._open: list[int] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}, []))
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}, []))

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        for number in self._open:
            self.elements[number][2].append(data)

    def all(self, tag: str, kind: str = "") -> list[str]:
        """Texts of all elements of a tag and class."""
        return [
            " ".join("".join(data).split())
            for name, given, data in self.elements
            if name == tag and (not kind or kind in given.get("class", "").split())
        ]

    @property
    def verdict(self) -> str:
        (said,) = self.all("p", "verdict")
        return said

    def row(self, first: str) -> list[str]:
        """Cells of the row of a table that begins so."""
        (found,) = [r for r in re.findall(r"<tr.*?</tr>", self.text, re.DOTALL) if first in r]
        cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", found, re.DOTALL)
        return [" ".join(re.sub(r"<[^>]*>", "", cell).split()) for cell in cells]


def test_report_is_self_contained() -> None:
    page = Page(make(small_run.finished(faults=small_run.faults())))
    for tag, given, _ in page.elements:
        assert tag not in ("script", "link", "img", "iframe", "object"), given
        assert not {"src", "href"} & given.keys()
        assert given.get("xlink:href", "#").startswith("#")  # of the same page
    assert set(re.findall(r"url\(.", page.text)) <= {"url(#"}
    assert "@import" not in page.text
    addresses = set(re.findall(r"https?://[^\s\"'<]+", page.text))
    # Names, not places.
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_a_done_job_is_shown_with_its_figures() -> None:
    page = Page(make(small_run.finished()))
    assert page.verdict == "done: weights match the reference, bit by bit"
    tiles = dict(zip(page.all("dt"), page.all("dd"), strict=True))
    assert tiles["test accuracy"] == "0.9000"
    assert tiles["iterations"] == "4"
    assert tiles["median iteration"] == "750 ms"
    assert tiles["summed by switches"] == "100.0 %"
    assert tiles["retransmitted packets"] == "3"
    assert {"Loss", "Test accuracy", "tor0", "tor1", "core0"} <= set(page.all("strong"))
    assert tiles["kernel"]
    # Every link, both ways; its bytes beside what they should be.
    assert len([r for r in page.all("tr") if " to " in r]) == 2 * (8 + 2 + 2)
    tensor = small_run.WORK.edge(small_run.WORK.chunks).bytes
    assert page.row(">tor0 to core0<")[1:4] == [f"{tensor:,}"] * 2 + ["0 %"]
    assert page.all("tr", "off") == []


def test_measured_servers_are_shown_and_stragglers_stand_out() -> None:
    run = small_run.finished(jobs=[small_run.job(server_times=small_run.server_times())])
    page = Page(make(run))
    cells = ["40", "12", "10", "2", "0", "2.5", "75 %"]
    assert page.row(">s0 (straggles)<") == ["s0 (straggles)", *cells]
    assert page.row(">s1<") == ["s1", "0", "2", "-", "-", "-", "-", "25 %"]
    assert [row.split()[0] for row in page.all("tr", "off")] == ["s0"]
    (shown,) = collect(run)["jobs"]
    assert shown["server_times"] == small_run.server_times()
    assert "straggles" not in make(small_run.finished())


def test_moves_between_servers_are_shown() -> None:
    moves = [
        {
            "version": 1, "epoch": 1, "from_round": 7, "reason": "servers +s1", "slices": 6,
            "bytes": 18432, "seconds": 0.25, "transfer_seconds": 0.002, "blocked_seconds": 0.001,
        }
    ]  # fmt: skip
    job = small_run.job(moves=moves, blocked_seconds=0.001)
    page = Page(make(run := small_run.finished(jobs=[job])))
    assert page.row("servers +s1") == ["1", "7", "servers +s1", "6", "18,432", "250 ms", "1 ms"]
    (shown,) = collect(run)["jobs"]
    assert shown["moves"] == moves
    console = Console(width=200, file=io.StringIO())
    show_results(console, [job], [])
    assert "1, of 6 slices, 18.43 kB; blocked 1 ms" in console.file.getvalue()


def test_terminal_and_report_agree_where_switches_lost_their_counters() -> None:
    lost = {"aggregated_in_network": None, "served_by_server": None, "unknown": "tor0 was killed"}
    plans = [
        {"epoch": 1, "tree": "two-level", "roots": ["core0"], "by_switch": 70, "by_server": 0},
        {"epoch": 2, "tree": "none", "roots": ["s0"], "by_switch": 0, "by_server": 30},
    ]
    job = small_run.job(plans=plans)
    job["chunks"] |= lost
    items = Page(make(small_run.finished(jobs=[job]))).all("li")
    assert {"summed by switches on their way: 70", "by servers alone: 30"} <= set(items)
    console = Console(width=200, file=io.StringIO())
    show_results(console, [job], small_run.carried())
    text = console.file.getvalue()
    assert re.search(r"chunks summed by switches +70\n", text)
    assert re.search(r"chunks by servers alone +30\n", text)
    assert "a worker's count, as switches' own cannot tell: tor0 was killed" in text


def test_sums_of_switches_completed_by_a_server_count_as_both() -> None:
    chunks = small_run.job()["chunks"]["aggregated_in_network"]
    plan = {"epoch": 1, "tree": "inc-server", "roots": ["s0"], "by_switch": 0, "by_server": chunks}
    page = Page(make(small_run.finished(jobs=[small_run.job(tree="inc-server", plans=[plan])])))
    result = page.all("li")
    assert f"summed by switches on their way: {chunks:,}" in result
    assert "by servers alone: 0" in result
    assert page.row("sums end at")[-2:] == ["completed at a switch", "at a server"]
    assert page.row("inc-server")[-3:] == ["s0", "0", f"{chunks:,}"]
    (about,) = [text for text in page.all("p") if text.startswith("Its plans: ")]
    assert "completes what switches have summed on the way" in about


def test_a_link_that_carried_more_than_it_should_stands_out() -> None:
    tensor = small_run.WORK.edge(small_run.WORK.chunks).bytes
    for beyond, marked in ((tensor // 100, []), (tensor // 10, ["tor0 to core0"])):
        page = Page(make(small_run.finished(links=small_run.carried(beyond=beyond))))
        stand_out = page.all("tr", "off")
        assert len(stand_out) == len(marked)
        assert all(row.startswith(name) for row, name in zip(stand_out, marked, strict=True))


def test_link_loads_have_colours() -> None:
    """The job ran for 4.75 s, in which 20 Mbit/s carry 11.9 MB."""
    page = make(small_run.finished())
    (svg,) = re.findall(r'<div class="scroll"[^>]*aria-label="The topology">\s*(<svg.*?</svg>)',
                        page, re.DOTALL)  # fmt: skip
    drawn = ElementTree.fromstring(svg)
    name = "{http://www.w3.org/2000/svg}"
    lanes = {}
    for path in drawn.iter(f"{name}path"):
        title = path.find(f"{name}title")
        assert title is not None
        lanes[str(title.text).split(":")[0]] = (path.get("class"), str(title.text))
    assert len(lanes) == 24
    share = 8 * small_run.WORK.edge(small_run.WORK.chunks).bytes / (20e6 * 4.75)
    assert 0.03 < share < 0.04  # of the rate: the first of five classes, though none is fuller
    assert lanes["w3 to tor0"][0] == lanes["core0 to tor1"][0] == "lane load-1"
    result = re.search(r"([\d.]+) % of 20 Mbit/s", lanes["w3 to tor0"][1])
    assert result is not None
    assert float(result[1]) / 100 == pytest.approx(share, rel=0.02)
    assert lanes["s0 to tor0"][0] == "lane load-0"


@pytest.mark.parametrize(
    ("percent", "level"), [(0, 0), (1, 1), (5, 1), (19, 2), (49, 3), (79, 4), (95, 5), (104, 5)]
)
def test_colours_of_loads_are_shares_of_the_rate(percent: int, level: int) -> None:
    rows = [row for row in small_run.carried() if row["from"] == "w3"]
    rows[0]["bytes"] = 20_000_000 // 8 * percent // 100
    assert loads(load(small_run.TOPOLOGY), rows, 1.0).rows[0]["level"] == level


def test_loads_cover_active_time() -> None:
    """The job trained for 4.75 s; what another sent before or after is in the same bytes."""

    def share(*spans: tuple[float, float]) -> tuple[float, list[str]]:
        others = [small_run.other(n, began=a, ended=b) for n, (a, b) in enumerate(spans, 2)]
        page = Page(make(small_run.finished(others=others)))
        said = [text for text in page.all("p") if "jobs that were not submitted sent, too" in text]
        return float(page.row(">w3 to tor0<")[-1].split()[0]), said

    alone, nothing = share()
    assert nothing == []
    within, said = share((1.0, 3.0))
    assert (within, len(said)) == (alone, 1)
    assert share((4.75, 6.0), (8.25, 11.75))[0] == pytest.approx(alone / 2, abs=0.06)


def test_faults_are_marked_on_the_curves_and_listed() -> None:
    kinds = [("kill", "tor0", "was killed by SIGKILL"), ("stop", "w2", "was stopped for 3 s")]
    page = Page(make(small_run.finished(faults=small_run.faults(kinds))))
    marks = [t for t in page.all("title") if re.match(r"\d: ", t)]
    # On both curves, and on each switch's slots.
    assert sorted(set(marks)) == ["1: tor0 was killed by SIGKILL", "2: w2 was stopped for 3 s"]
    assert len(marks) == 2 * (2 + 3)
    row = page.row(">w2<")
    assert row[:4] == ["2", "1.5", "w2", "was stopped for 3 s"]
    assert row[5:8] == ["digits", "2.00", "2"]
    assert page.row(">tor0</td>")[5:8] == ["digits", "2.00", "1 to 2"]


def test_what_servers_carried_is_shown_over_time_if_they_did() -> None:
    assert "Servers" not in Page(make(small_run.finished())).all("h2")  # the same count always
    with small_run.begun() as (run, writer):
        small_run.train(writer)
        for second in range(3):
            now = small_run.snapshot(monotonic=writer.started + 10 + second)
            now["servers"][1]["received_bytes"] += second * 250_000
            writer.sample(now)
        writer.sample(now)  # once more at that moment, as when a job ends
        run.write_summary(small_run.summary())
    text = make(run)
    page = Page(text)
    assert "Servers" in page.all("h2")
    assert "Received" in page.all("strong")
    assert "Sent" not in page.all("strong")
    (svg,) = re.findall(r'<svg[^>]*aria-label="Mbit/s that each server received.*?</svg>', text)
    ticks = [t.text for t in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert "2" in ticks  # Mbit/s: 250 kB in a second
    idle, busy = curves(svg)
    assert len({y for _, y in idle}) == 1
    assert min(y for _, y in busy) < min(y for _, y in idle)


def test_lost_byte_counters_are_unknown_with_a_reason() -> None:
    page = Page(make(small_run.finished(links=small_run.carried(lost="tor0"))))
    assert page.row(">tor0 to core0<")[1] == "-"
    assert "Unknown: tor0 has lost its counters." in page.all("p")
    assert "deviation" not in page.all("th")


def test_a_job_that_learns_nothing_has_no_curves_and_no_warning() -> None:
    row = {**small_run.job(), "payload": "none", "workload": "layers", "test_accuracy": None}
    row |= {"matches_reference": None, "no_reference": "without payload there are no sums"}
    with small_run.begun() as (run, writer):
        writer.state("digits", "running")
        writer.iterations("digits", [Iteration(1, writer.started + 1, None, None)])
        run.write_summary(small_run.summary(jobs=[row]))
    page = Page(make(run))
    assert page.verdict == "done: chunks only occupied the wire, so there are no sums to check"
    assert page.all("p", "plain") == [page.verdict]
    assert {"Loss", "Test accuracy"}.isdisjoint(page.all("strong"))
    assert "Training" not in page.all("h2")
    assert "not known" not in page.text
    assert any(text.startswith("It trains nothing: ") for text in page.all("p", "soft"))


def test_differing_weights_are_the_verdict() -> None:
    page = Page(make(small_run.finished(jobs=[small_run.job(matches=False)])))
    assert page.verdict == "the weights of digits differ from the reference's"
    assert page.all("p", "bad") == [page.verdict]
    apart = small_run.job(matches=False, matches_reference=None, no_reference="nobody counted")
    page = Page(make(small_run.finished(jobs=[apart])))
    why = "whether the weights of digits are right is not known: nobody counted"
    assert page.verdict == f"done; {why}"


def test_switches_without_held_slots_are_named_and_not_drawn() -> None:
    def page(*idle: str) -> Page:
        with small_run.begun() as (run, writer):
            writer.state("digits", "running")
            for n in range(1, 4):
                now = small_run.snapshot(monotonic=writer.started + n)
                for switch in now["switches"]:
                    if switch["name"] in idle:
                        switch["slots"] = {**switch["slots"], "held": 0}
                writer.sample(now)
            run.write_summary(small_run.summary())
        return Page(make(run))

    drawn = ["tor0", "tor1", "core0"]
    assert page().all("strong")[: len(drawn)] == drawn
    some = page("tor1")
    assert [name for name in some.all("strong") if name in drawn] == ["tor0", "core0"]
    assert "No job held slots of tor1." in some.all("p")
    none = page(*drawn)
    assert not set(drawn) & set(none.all("strong"))
    assert "No job held slots of a switch: what switches do not sum needs none." in none.all("p")


def test_several_jobs_are_distinguished() -> None:
    with small_run.begun() as (run, writer):
        for name in ("first", "second"):
            small_run.train(writer, name)
        jobs = [small_run.job("first", alongside=["second"]), small_run.job("second")]
        run.write_summary(small_run.summary(jobs=jobs))
    page = Page(make(run))
    assert page.all("h2")[:2] == ["Job first", "Job second"]
    assert "Trained at the same time as second." in page.all("p")
    assert [legend for legend in page.all("ul", "legend") if legend == "firstsecond"]


def test_jobs_that_were_not_submitted_are_listed_with_what_is_known() -> None:
    """Two of one name, and of the name of one that was submitted; none has tiles."""
    others = [
        small_run.other(5, "digits", ended=3.5),
        small_run.other(7, "digits", state=None, tree=None, reason=""),
        small_run.other(8, state="failed", reason="w1 was not heard of"),
    ]
    result = Page(make(small_run.finished(others=others)))
    assert [h for h in result.all("h2") if "Job " in h] == ["Job digits"]
    assert result.row('"row">5<') == ["5", "digits", "done", "8", "two-level", "2.5", "-"]
    assert result.row('"row">7<') == ["7", "digits", "over", "8", "-", "3.0", "-"]
    assert result.row('"row">8<')[2:] == ["failed", "8", "two-level", "3.0", "w1 was not heard of"]
    with small_run.begun() as (run, _):
        run.write_summary(small_run.summary(jobs=[], others=others))
    alone = Page(make(run))
    assert alone.verdict == "no job was submitted; 3 jobs of other programs, see below"


def test_jobs_of_a_live_testbed_are_distinguished_by_number() -> None:
    """Rows of both are in its status, and a name may be of one of each."""
    (mine,) = small_run.snapshot()["jobs"]
    own = [small_run.other(5, "digits", alive=True, state="running"), small_run.other(7, "digits")]
    assert submitted({"jobs": [mine, *own], "others": own}) == {mine["job"]: mine}


def test_json_has_what_the_page_shows() -> None:
    kinds = [("kill", "tor0", "was killed by SIGKILL"), ("stop", "w2", "was stopped for 3 s")]
    run = small_run.finished(faults=small_run.faults(kinds))
    page = Page(make(run))
    result = CliRunner().invoke(main, ["report", run.path.name, "--json"])
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["verdict"] == {"kind": "good", "text": page.verdict}
    (job,) = data["jobs"]
    tiles = dict(zip(page.all("dt"), page.all("dd"), strict=True))
    assert f"{job['accuracy']:.4f}" == tiles["test accuracy"]
    assert job["median"] == small_run.SECONDS
    assert job["chunks"]["network"] == small_run.ITERATIONS * small_run.WORK.chunks
    for link in data["links"]:
        row = page.row(f">{link['sender']} to {link['to']}<")
        assert row[1:3] == [f"{link['bytes']:,}", f"{link['expected_bytes']:,}"]
        assert row[-1] == f"{100 * link['share']:.1f} %"
    charts = [*data["training"], *data["slots"], *data["server_loads"]]
    assert [one["title"] for one in charts] == [
        text for text in page.all("strong") if text not in ("", data["run"])
    ]
    loss = data["training"][0]["lines"]
    assert [line["name"] for line in loss] == ["digits"]
    assert [y for _, y in loss[0]["points"]] == pytest.approx([2.0, 1.0, 2.0 / 3, 0.5])
    assert [(one["number"], one["node"], one["what"]) for one in data["faults"]] == [
        (number, node, what) for number, (_, node, what) in enumerate(kinds, start=1)
    ]
    both = CliRunner().invoke(main, ["report", "--json", "-o", "x.html"])
    assert both.exit_code == 2
    assert "leave --output out" in both.output


def test_losses_that_are_no_numbers_are_null_in_json() -> None:
    with small_run.begun() as (run, writer):
        writer.state("digits", "running")
        began = writer.started
        values = (1.0, float("inf"), float("nan"))
        done = [Iteration(n, began + n, one, None) for n, one in enumerate(values, start=1)]
        writer.iterations("digits", done)
    (loss,) = collect(run)["training"]
    assert [y for _, y in loss["lines"][0]["points"]] == [1.0, None, None]


def test_failed_run_quotes_its_log() -> None:
    with small_run.begun() as (run, writer):
        small_run.train(writer, last=2)
        run.write_summary(small_run.summary(jobs=[]))
        run.note_failure("w3 was killed by <b>SIGKILL</b>", "w3")
        (run.logs / "w3.log").write_text("first\nlast words & more\n")
    text = make(run)
    page = Page(text)
    assert page.verdict == "failed: w3 was killed by <b>SIGKILL</b> (w3)"
    assert "<b>" not in text
    assert "last words & more" in page.all("pre")[0]
    assert "Job digits: running" in page.all("h2")  # as far as it came


def test_a_killed_run_is_shown_up_to_its_end() -> None:
    with small_run.begun() as (run, writer):
        small_run.train(writer, last=3)
        (run.logs / "supervisor.log").write_text("up after 1.5 s\n")
    page = Page(make(run))
    assert page.verdict == "ended without a summary: it was killed"
    assert "up after 1.5 s" in page.all("pre")[0]
    tiles = dict(zip(page.all("dt"), page.all("dd"), strict=True))
    assert tiles["iterations"] == "3 of -"
    assert tiles["test accuracy"] == "0.3000"


def test_a_live_run_that_does_not_answer_is_shown_as_far_as_known() -> None:
    with small_run.begun() as (run, writer):
        small_run.train(writer, last=1)
        page = Page(make(run))
    assert page.verdict == "still up: this is what is known so far"
    assert "Job digits: running" in page.all("h2")


def test_a_run_of_before_there_was_a_series_has_all_the_rest() -> None:
    run = small_run.finished()
    (run.path / "series.jsonl").unlink()
    run.topology.unlink()
    facts = {**run.facts, "topology": str(small_run.TOPOLOGY)}
    (run.path / record.FACTS).write_text(json.dumps(facts))
    page = Page(make(run))
    assert "Loss" not in page.all("strong")
    assert page.row(">tor0 to core0<")[3] == "0 %"
    assert "core0" in page.all("text", "name")  # from the file that it was started with


def test_an_unreadable_topology_is_not_drawn_with_a_reason() -> None:
    run = small_run.finished()
    run.topology.write_text("name: wrong\nracks: none\n")
    page = Page(make(run))
    (why,) = [p for p in page.all("p") if p.startswith("The topology is not drawn: ")]
    assert str(run.topology) in why
    assert page.row(">tor0 to core0<")[-1].endswith("100.0 %")  # of the fullest


# --- the command ---


def rackhub(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.output


def test_a_run_is_found_by_each_of_its_names(tmp_path: Path) -> None:
    older, newer = small_run.finished(), small_run.finished()
    for name, run in (
        (older.path.name, older), (str(older.path), older), ("small", newer), ("latest", newer),
        (str(newer.path.parent / "latest"), newer),
    ):  # fmt: skip
        assert record.known(name).path == run.path
    status, said = rackhub("report")
    assert (status, said.strip()) == (0, str(newer.path / "report.html"))
    assert (newer.path / "report.html").read_text() == make(newer)
    out = tmp_path / "page.html"
    assert rackhub("report", older.path.name, "--output", str(out))[0] == 0
    assert out.read_text() == make(older)
    assert rackhub("report", "small", "-o", "-") == (0, make(newer))


def test_unknown_run_is_rejected_with_alternatives(tmp_path: Path) -> None:
    status, said = rackhub("report")
    assert status == 1
    assert "there is no run in" in said
    run = small_run.finished()
    status, said = rackhub("report", "nosuch")
    assert status == 1
    assert f"no run 'nosuch' in {run.path.parent}; the newest are {run.path.name}" in said
    status, said = rackhub("report", str(tmp_path))
    assert status == 1
    assert f"{tmp_path} is no run directory" in said
    status, said = rackhub("report", "-o", str(tmp_path / "no" / "page.html"))
    assert status == 1
    assert "page.html: cannot be written: No such file or directory" in said
    (run.path / "series.jsonl").write_text('{"t": 1.0}\n')
    with pytest.raises(RunError, match=r"series\.jsonl cannot be read: 'job'"):
        make(run)
    (run.path / "testbed.json").write_text("{")
    with pytest.raises(RunError, match=r"is no run directory: its testbed\.json"):
        make(RunDirectory(run.path))


# --- curves ---

X, Y = Axis("seconds"), Axis("loss", 0.0)


def curves(svg: str) -> list[list[tuple[float, float]]]:
    """Places of each part of each curve."""
    found = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        if group.get("id", "").startswith("curve-"):
            path = group.find(f"{SVG}path")
            parts = [] if path is None else str(path.get("d")).split("M")[1:]
            for part in parts:
                pairs = re.findall(r"([\d.]+) ([\d.]+)", part)
                found.append([(float(x), float(y)) for x, y in pairs])
    return found


def test_a_curve_is_broken_where_nothing_is_known() -> None:
    points = [(0.0, 1.0), (1.0, 2.0), (2.0, None), (3.0, float("nan")), (4.0, 3.0), (5.0, 1.0)]
    first, second = curves(chart("", [Line("a", points)], X, Y))
    assert (len(first), len(second)) == (2, 2)
    assert first[-1][0] < second[0][0]
    assert first[1][1] > second[0][1]  # more is further up


def test_of_a_long_curve_no_peak_is_lost() -> None:
    points = [(float(n), 100.0 if n == 6_789 else float(n % 7)) for n in range(20_000)]
    (drawn,) = curves(chart("", [Line("a", points)], X, Y))
    assert len(drawn) < 3_000
    top = min(y for _, y in drawn)
    ((across, _),) = [place for place in drawn if place[1] == top]
    ends = drawn[0][0], drawn[-1][0]
    assert (across - ends[0]) / (ends[1] - ends[0]) == pytest.approx(6_789 / 19_999, abs=0.001)


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors() -> None:
    points = [(0.0, 10.0), (1.0, 1.0), (2.0, 0.1), (3.0, 0.01)]
    (drawn,) = curves(chart("", [Line("a", points)], X, Axis("loss", log=True)))
    steps = [b[1] - a[1] for a, b in itertools.pairwise(drawn)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)
    assert steps[0] > 0


def test_a_chart_of_one_value_or_none_can_be_drawn() -> None:
    for points in ([], [(1.0, 0.0)], [(1.0, 5.0)], [(1.0, None)]):
        svg = chart("it", [Line("a", points)], X, Y, [Mark("1", 2.0, "1: a fault")])
        assert ElementTree.fromstring(svg).get("aria-label") == "it"
        assert "nan" not in svg
