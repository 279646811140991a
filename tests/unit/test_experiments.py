# SPDX-License-Identifier: Apache-2.0
"""Tests `rackhub experiment`: finds experiments by their files, runs, continues and draws them."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import experiments
from cli.main import main
from emulation.nodes.processes import environment
from experiments.common import declaration, registry
from experiments.common.declaration import Experiment, ExperimentError, Figure, Published
from specs.paths import ROOT

TINY = """\
import click
from experiments.common.script import Results, Setup, experiment


@experiment
@click.option("--fail", is_flag=True)
def main(setup: Setup, fail: bool) -> Results:
    \"""Measure nothing.\"""
    (setup.folder / "input.yaml").write_text("{}")
    return Results([{"line": 1}], ["a table"], lambda old: old + "new", ["wrong"] * fail)
"""
GUIDE = ROOT / "docs" / "howto" / "new-experiment.md"
(RACKS,) = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
# What `rackhub` is, with a folder of further experiments.
COMMAND = """
import sys, experiments
from cli.main import main
experiments.__path__.append(sys.argv.pop(1))
main(prog_name="rackhub")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of experiments beside the shipped ones."""
    own = tmp_path / "experiments"
    own.mkdir()
    (own / "tiny.py").write_text(TINY)
    (own / "racks.py").write_text(RACKS)
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(own)])
    yield own
    for name in ("tiny", "racks", "broken", "absent", "zebra"):
        sys.modules.pop(f"experiments.{name}", None)


def rackhub(*options: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command."""
    found = CliRunner().invoke(main, ["experiment", *options])
    return found.exit_code, found.stdout, found.stderr


def test_all_are_listed() -> None:
    status, output, _ = rackhub("list")
    rows = [re.split(" {2,}", line) for line in output.splitlines()[1:]]
    lines = {name: about for name, _, about in rows}
    assert status == 0
    assert {"placements", "predictions", "reliability", "racks", "tiny"} <= lines.keys()
    assert lines["tiny"] == "Measure nothing"
    assert lines["racks"].startswith("Time of an iteration with servers and with switches")
    listed = json.loads(rackhub("list", "--json")[1])["experiments"]
    assert {one["experiment"]: one["about"] for one in listed} == lines


def test_common_options_of_those_that_run_by_themselves(folder: Path) -> None:
    page, to = folder / "page.md", folder / "kept"
    page.write_text("old, ")
    options = ["tiny", "--json", "--write", str(page), "--to", str(to), "--fail"]
    status, output, errors = rackhub(*options)
    assert (status, errors) == (1, "error: wrong\n")
    assert json.loads(output) == json.loads((to / "results.json").read_text()) == [{"line": 1}]
    assert page.read_text() == "old, new"
    assert (to / "input.yaml").exists()
    assert rackhub("tiny") == (0, "a table\n", "")


def test_the_experiment_of_the_guide_is_short_and_works(tmp_path: Path, runs: Path) -> None:
    assert len([line for line in RACKS.splitlines() if line.strip()]) <= 30
    page = tmp_path / "docs" / "racks.md"
    page.parent.mkdir()
    status, output, errors = rackhub("racks", "--json", "--write", str(page))
    assert status == 0, errors
    (figure,) = json.loads(output)["figures"]
    assert figure.keys() == declaration.FigureRow.__annotations__.keys()
    assert figure["id"] == "ratio@4"
    assert figure["ratio"] == figure["ours"] / 4
    assert figure["holds"] is (figure["ours"] > 3.8)
    assert (figure["why"] is None) is figure["holds"]
    kept = runs / "experiments" / "racks"
    assert json.loads((kept / "figures.json").read_text()) == json.loads(output)
    with (kept / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["placement"], row["workers"]) for row in rows] == [
        (placement, workers) for placement in ("ncs", "inc") for workers in ("2", "4", "8", "16")
    ]
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds[3] > 6 * seconds[0]  # servers: 8 times the workers
    assert seconds[7] < 2 * seconds[4]  # switches
    for written in (page, kept / "racks.md"):
        text = written.read_text()
        assert "`ratio@4`" in text
        assert "![Time of an iteration over workers.](racks/workers.svg)" in text
        picture = ElementTree.parse(written.parent / "racks" / "workers.svg")
        assert picture.getroot().tag.endswith("svg")
    web = (kept / "racks.html").read_text()
    assert "<svg" in web
    assert "src=" not in web  # it stands alone


def test_a_killed_experiment_continues_and_then_only_draws(folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    options = ["racks", "--quick", "--jobs", "1", "--to", str(kept)]
    killed = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(folder), "experiment", *options],
        env=environment(),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert killed.stderr is not None
    for line in killed.stderr:
        if line.startswith("1/4 trials"):
            break
    killed.kill()
    killed.wait()
    killed.stderr.close()
    first = {path: path.stat().st_mtime_ns for path in kept.glob("trials/*/result.json")}
    assert first

    status, _, errors = rackhub(*options)
    assert status == 0, errors
    assert f"4 trials, {len(first)} of them done before" in errors
    every = {path: path.stat().st_mtime_ns for path in kept.glob("trials/*/result.json")}
    assert len(every) == 4
    assert first.items() <= every.items()

    picture = kept / "racks" / "workers.svg"
    before = picture.read_text()
    (folder / "racks.py").write_text(RACKS.replace("s per iteration", "seconds here"))
    sys.modules.pop("experiments.racks")
    status, _, errors = rackhub(*options)
    assert status == 0
    assert "4 trials, 4 of them done before" in errors
    assert "seconds here" not in before
    assert "seconds here" in picture.read_text()
    assert {path: path.stat().st_mtime_ns for path in every} == every


def test_a_point_that_cannot_run_is_named_before_anything_runs(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "broken.py").write_text(RACKS.replace('"64 KiB"', '"64 parsecs"'))
    status, output, errors = rackhub("broken", "--to", str(tmp_path / "kept"))
    assert (status, output) == (1, "")
    assert "broken, point placement ncs, workers 2: job.yaml: layers[0]: '64 parsecs'" in errors
    assert not (tmp_path / "kept" / "trials").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('"workers": workers}', '"workers": 1}'), "two points have the values placement ncs"),
        (("slow / fast > 3.8, why", 'False, ""'), "ratio@4 does not hold, and nothing says why"),
        (("workers=4)", "workers=5)"), "0 points have {'placement': 'ncs', 'workers': 5}"),
        (('return {"seconds"', 'return {"secnds"'), "measures nothing called seconds"),
    ],
)
def test_mistakes_of_a_declaration_are_named(
    change: tuple[str, str], says: str, folder: Path, tmp_path: Path
) -> None:
    (folder / "broken.py").write_text(RACKS.replace(*change))
    status, _, errors = rackhub("broken", "--quick", "--to", str(tmp_path / "kept"))
    assert status == 1
    assert says in errors


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["racs"], "Did you mean 'racks'?"),
        (["racks", "--jobs", "0"], "'--jobs': 0 is not in the range"),
        (["racks", "--emulated"], "racks has no points in real time"),
        (["racks", "--quick", "--write", "page.md"], "leave --quick out"),
        (["all", "--quick", "--write", "pages"], "leave --quick out"),
    ],
)
def test_bad_arguments(options: list[str], says: str) -> None:
    status, output, errors = rackhub(*options)
    assert (status, output) == (2, "")
    assert says in errors


def test_a_claim_that_fails_fails_the_command(folder: Path, tmp_path: Path) -> None:
    claim = "\nfrom experiments.common.declaration import Claim\nEXPERIMENT = Experiment("
    text = RACKS.replace("EXPERIMENT = Experiment(", claim)
    text = text.replace("sections)\n", 'sections, lambda _: [Claim("it is so", False)])\n')
    (folder / "broken.py").write_text(text)
    status, _, errors = rackhub("broken", "--quick", "--to", str(tmp_path / "kept"))
    assert status == 1
    assert "1 claim failed: it is so" in errors
    assert "**does not hold**: it is so" in (tmp_path / "kept" / "broken.md").read_text()


def test_completion_knows_experiments() -> None:
    shell = ShellComplete(main, {}, "rackhub", "_RACKHUB_COMPLETE")
    found = {one.value for one in shell.get_completions(["experiment"], "")}
    assert {"all", "list", "placements", "racks", "tiny"} <= found
    options = {one.value for one in shell.get_completions(["experiment", "racks"], "--")}
    assert {"--quick", "--json", "--to", "--write"} <= options


@pytest.mark.parametrize("name", registry.names())
def test_points_of_shipped_experiments_can_run(name: str) -> None:
    from experiments.common.running import prepare

    found = registry.experiment_named(name)
    for quick in (False, True) if isinstance(found, Experiment) else ():
        assert prepare(name, found, quick=quick).points


def test_a_figure_without_a_published_one_has_no_ratio() -> None:
    figure = Figure("id", "what", "x", Published(None, "new"), 2.0, True)
    assert figure.to_message()["ratio"] is None
    with pytest.raises(ExperimentError, match="nothing says why"):
        Figure("id", "what", "x", Published(None, "new"), 2.0, False)


@pytest.fixture
def only_racks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The guide's experiment, and one that runs by itself, are all there are."""
    monkeypatch.setattr(experiments, "__path__", [str(folder)])
    return folder


def test_all_runs_what_is_declared_and_goes_on(only_racks: Path, tmp_path: Path) -> None:
    to, pages = tmp_path / "kept", tmp_path / "pages"
    listed = json.loads(rackhub("list", "--json")[1])["experiments"]
    assert {one["experiment"]: one["in_all"] for one in listed} == {"racks": True, "tiny": False}
    status, output, errors = rackhub("all", "--quick", "--json", "--to", str(to))
    assert status == 0, errors
    (entry,) = json.loads(output)["experiments"]
    assert (entry["experiment"], entry["problems"]) == ("racks", [])
    assert [one["id"] for one in entry["figures"]] == ["ratio@4"]
    text = (to / "all-quick.md").read_text()
    assert "| [`racks`](racks-quick/racks.md) | Racks | 4 |" in text
    assert (to / "racks-quick" / "racks.md").exists()
    assert "`ratio@4`" in text
    assert ElementTree.parse(to / "all-quick" / "ratios.svg").getroot().tag.endswith("svg")
    web = (to / "all-quick.html").read_text()
    assert '<a href="racks-quick/racks.html">' in web
    assert "<svg" in web
    assert "src=" not in web

    again = rackhub("all", "--quick", "--to", str(to))
    assert again[0] == 0
    assert "4 trials, 4 of them done before" in again[2]
    status, _, errors = rackhub("all", "--to", str(to), "--write", str(pages))
    assert status == 0, errors
    text = (pages / "papers.md").read_text()
    assert "| [`racks`](racks.md) | Racks | 8 |" in text
    assert "coarse" not in text
    assert (pages / "racks.md").exists()


def test_all_reports_failures_and_runs_the_rest(only_racks: Path, tmp_path: Path) -> None:
    claim = "\nfrom experiments.common.declaration import Claim\nEXPERIMENT = Experiment("
    text = RACKS.replace("EXPERIMENT = Experiment(", claim)
    text = text.replace("sections)\n", 'sections, lambda _: [Claim("it is so", False)])\n')
    (only_racks / "broken.py").write_text(text)
    missing = RACKS.replace('return {"seconds"', 'return {"secnds"')
    (only_racks / "absent.py").write_text(missing)
    to = tmp_path / "kept"
    status, output, errors = rackhub("all", "--quick", "--json", "--to", str(to))
    assert status == 1
    assert "2 failures: absent: `measure` measures nothing called seconds" in errors
    assert "broken: it is so" in errors
    found = {one["experiment"]: one for one in json.loads(output)["experiments"]}
    assert list(found) == ["absent", "broken", "racks"]
    assert found["absent"]["figures"] == []
    assert found["broken"]["problems"] == ["it is so"]
    assert found["racks"]["problems"] == []
    page = (to / "all-quick.md").read_text()
    assert "**Not complete**: `measure` measures nothing called seconds" in page
    assert "- **does not hold**: it is so" in page


def test_all_checks_the_points_of_all_before_any_runs(only_racks: Path, tmp_path: Path) -> None:
    (only_racks / "zebra.py").write_text(RACKS.replace('"64 KiB"', '"64 parsecs"'))
    status, output, errors = rackhub("all", "--to", str(tmp_path / "kept"))
    assert (status, output) == (1, "")
    assert "zebra, point placement ncs, workers 2: job.yaml: layers[0]: '64 parsecs'" in errors
    assert not (tmp_path / "kept").exists()
