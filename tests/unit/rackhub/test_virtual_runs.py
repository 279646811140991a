# SPDX-License-Identifier: Apache-2.0
"""Tests runs in virtual time from Python, and what is known of them."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import cast
from xml.etree import ElementTree

import pytest
import yaml
from click.testing import CliRunner

import rackhub
from cli.main import main
from observability.messages.events import Event
from observability.messages.summary import FinishedRun
from rackhub.results import Result

SMALL = rackhub.Topology.build("small", racks=2, workers=2, link="50 Mbit/s")
JOB = {"name": "brief", "hidden": [32], "iterations": 6, "batch": 256}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RACKHUB_RUNS", str(tmp_path_factory.mktemp("runs")))
        return rackhub.run(SMALL, JOB, clock="virtual")


def test_a_run_is_that_of_the_command_line(result: Result, tmp_path: Path, runs: Path) -> None:
    """Equal files give equal figures, to the last digit, whoever starts the run."""
    topology, job = tmp_path / "topology.yaml", tmp_path / "job.yaml"
    SMALL.save(topology)
    job.write_text(yaml.safe_dump(JOB))
    arguments = ["run", str(topology), "--job", str(job), "--clock", "virtual", "--json"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    summary = cast(FinishedRun, result.summary)
    assert told["weights_sha256"] == summary["weights_sha256"]
    assert tuple(told["seconds_per_iteration"]) == result.iteration_seconds
    assert told["links"] == result.links


def test_a_result_has_figures_of_every_iteration(result: Result) -> None:
    assert (result.job, result.topology) == ("brief", "small")
    assert (result.clock, result.target) == ("virtual", "embedded")
    assert [one.number for one in result.iterations] == [1, 2, 3, 4, 5, 6]
    assert {one.workers for one in result.iterations} == {4}
    losses = [one.loss for one in result.iterations]
    assert None not in losses
    assert losses[-1] < losses[0]  # type: ignore[operator]
    ordered = sorted(result.iteration_seconds)
    assert result.median_iteration_seconds == (ordered[2] + ordered[3]) / 2
    assert result.iterations[-1].accuracy == result.test_accuracy
    assert (result.matches_reference, result.share_in_network) == (True, 1.0)
    assert {row["bytes"] for row in result.links} == {row["expected_bytes"] for row in result.links}
    again = Result.load(result.path)
    assert (again.iterations, again.links) == (result.iterations, result.links)


def test_results_are_shown_briefly_and_drawn(result: Result) -> None:
    rows = ElementTree.fromstring(result._repr_html_())
    figures = {row[0].text: row[1].text for row in rows}
    assert figures["job"] == "brief on small"
    assert figures["matches reference"] == "yes"
    assert repr(result).startswith("<Result job: brief on small, ")
    figure = result.plot()
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["time per iteration (ms)", "loss (nats)", "busiest links (kB)"]
    times = figure.axes[0].lines[0].get_ydata()
    assert list(times) == pytest.approx([1000 * one for one in result.iteration_seconds])
    assert ElementTree.fromstring(figure._repr_svg_()).tag.endswith("svg")  # type: ignore[attr-defined]


def test_tables_for_pandas(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    table = result.to_pandas()
    assert list(table.index) == [1, 2, 3, 4, 5, 6]
    assert tuple(table["seconds"]) == result.iteration_seconds
    links = result.to_pandas("links")
    assert list(links["bytes"]) == [row["bytes"] for row in result.links]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(rackhub.Error, match=r"pip install 'rackhub\[notebook\]'"):
        result.to_pandas()


def test_fields_replace_those_of_a_job(tmp_path: Path, runs: Path) -> None:
    (tmp_path / "trace.yaml").write_text("layer_times: [1 ms, 2 ms, 3 ms, 4 ms]\n")
    base = tmp_path / "job.yaml"
    base.write_text(yaml.safe_dump({**JOB, "workload": "layers"}))
    file = rackhub.run(
        SMALL,
        {"name": "sizes", "workload": "layers", "layers": ["64 kB"], "iterations": 1},
        clock="virtual",
        iterations=2,
        compute="1 ms",
    )
    assert (file.job, len(file.iterations)) == ("sizes", 2)
    assert min(file.iteration_seconds) > 1e-3
    assert file.test_accuracy is None


def test_faults_are_a_list_or_a_file(result: Result, tmp_path: Path, runs: Path) -> None:
    listed = [{"at": "1 ms", "slow": {"link": ["w0", "tor0"], "by": 5}, "for": "forever"}]
    slow = rackhub.run(SMALL, JOB, clock="virtual", faults=listed)
    assert slow.median_iteration_seconds > 2 * result.median_iteration_seconds
    file = tmp_path / "slow.yaml"
    file.write_text(yaml.safe_dump({"faults": listed}))
    again = rackhub.run(SMALL, JOB, clock="virtual", faults=file)
    assert again.iteration_seconds == slow.iteration_seconds
    listed[0]["slow"] = {"host": "w0", "by": 2}
    with pytest.raises(rackhub.FaultsError, match=r"^faults: faults\[0\].slow.host: w0 takes no"):
        rackhub.run(SMALL, JOB, clock="virtual", faults=listed)


def test_a_file_with_fields_keeps_its_relative_paths(tmp_path: Path, runs: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    first = rackhub.run(
        SMALL, JOB, clock="virtual", iterations=2, checkpoint={"every": 2, "to": str(folder)}
    )
    assert len(first.iterations) == 2
    (folder / "job.yaml").write_text(yaml.safe_dump({**JOB, "restore": "brief-2.checkpoint"}))
    second = rackhub.run(SMALL, folder / "job.yaml", clock="virtual", iterations=4)
    assert [one.number for one in second.iterations] == [3, 4]
    assert None not in [one.loss for one in second.iterations]


def test_events_go_to_a_function_and_warnings_to_the_log(
    runs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    with caplog.at_level(logging.WARNING, "rackhub"):
        short = SMALL.replace(defaults={"queue_bytes": "4 KiB"})
        rackhub.run(short, JOB, clock="virtual", progress=events.append, tree="none", window=16)
    assert [one["event"] for one in events][:2] == ["starting", "running"]
    assert [one["iteration"] for one in events if one["event"] == "progress"] == [1, 2, 3, 4, 5, 6]
    (warning,) = [one.getMessage() for one in caplog.records if one.name == "rackhub"]
    assert warning.startswith("brief: window: the queue from tor0 to s0 has room for 4 of")


def test_progress_is_shown(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rackhub.run(SMALL, JOB, clock="virtual", progress=True)
    assert "brief: iteration 6/6" in capsys.readouterr().out


def test_mistakes_are_named_before_anything_starts(tmp_path: Path, runs: Path) -> None:
    for job, fields, expected in (
        (JOB, {"iterations": 0}, "brief: iterations: should be at least 1, not 0"),
        (JOB, {"iteration": 5}, "brief: iteration: unknown field; .* did you mean iterations?"),
        ({"name": "x"}, {}, "x: iterations: required, but not given"),
        ("digits", {"batch": 5}, "digits: batch: 5 cannot be split evenly over 4 workers"),
        ("figures", {}, "figures: is no file, and none of jobs/: .*digits, .*vgg19"),
        (tmp_path / "absent.yaml", {}, "absent.yaml: no such file"),
    ):
        with pytest.raises(rackhub.JobFileError, match=expected):
            rackhub.run(SMALL, job, clock="virtual", **fields)  # type: ignore[arg-type]
    narrow = rackhub.Topology.build(link={"mtu": 500})
    with pytest.raises(rackhub.TopologyError, match=r"^Topology.build: link.mtu: w0 to tor0 has"):
        rackhub.run(narrow, JOB, clock="virtual")
    with pytest.raises(ValueError, match="clock 'real' is neither"):
        rackhub.run(SMALL, JOB, clock="real")  # type: ignore[arg-type]
    assert not runs.exists()


def test_an_interrupted_run_leaves_its_record(runs: Path) -> None:
    def interrupt(event: Event) -> None:
        if event["event"] == "progress":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rackhub.run(SMALL, JOB, clock="virtual", progress=interrupt)
    latest = runs / "latest"
    assert "ended by SIGINT" in (latest / "summary.json").read_text()
    with pytest.raises(rackhub.RunError, match=r"no job at all is done; jobs: brief \(stopped\)"):
        Result.load(latest)
    with pytest.raises(rackhub.RunError, match="is no run that is over"):
        Result.load(runs)
