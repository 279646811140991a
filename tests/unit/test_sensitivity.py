# SPDX-License-Identifier: Apache-2.0
"""Tests sensitivity of experiments: which parameters are varied, and the plot and its table."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from experiments.common import registry
from experiments.common.declaration import Experiment, Plot, Section, Table
from experiments.common.page import Page
from experiments.common.sensitivity import AS_ASSUMED, FACTORS, Varied, sensitivity, variations

DECLARED = [
    name for name in registry.names() if isinstance(registry.experiment_named(name), Experiment)
]


def test_each_parameter_is_halved_and_doubled_alone() -> None:
    found = list(variations(("delay", "window"), base=True))
    assert [(name, factor) for name, factor, _ in found] == [
        ("delay", 0.5), ("delay", 2.0), ("window", 0.5), ("window", 2.0), (AS_ASSUMED, 1.0),
    ]  # fmt: skip
    assert found[2][2] == {"delay": 1.0, "window": 0.5}
    assert found[4][2] == {"delay": 1.0, "window": 1.0}
    assert len(list(variations(("delay", "window")))) == 4


@pytest.mark.parametrize("name", DECLARED)
def test_a_varied_parameter_changes_what_runs(name: str) -> None:
    """Halved, doubled and, if it has points of its own, as assumed: each is another run."""
    experiment = registry.experiment_named(name)
    assert isinstance(experiment, Experiment)
    runs: dict[str, dict[float, set[str]]] = defaultdict(lambda: defaultdict(set))
    for point in experiment.points(False):
        if point.values.get("of") == "sensitivity":
            files = str((point.topology, point.job, point.files))
            runs[str(point.values["parameter"])][float(point.values["factor"])].add(files)
    base = runs.pop(AS_ASSUMED, {}).get(1.0, set())
    for parameter, found in runs.items():
        assert found.keys() == set(FACTORS), parameter
        halved, doubled = (found[factor] - base for factor in FACTORS)
        assert halved, parameter
        assert doubled, parameter
        assert halved != doubled, parameter


def test_the_plot_and_its_table(tmp_path: Path) -> None:
    results = [
        Varied("one panel", "a parameter", lambda factor: 3 * factor, 2.5),
        Varied("one panel", "another", lambda factor: 4 / factor, 2.5),
        Varied("second panel", "another", lambda _: 1234.5),
    ]
    plot, table = sensitivity("Both panels.", "speed-up (times)", results)
    assert isinstance(plot, Plot)
    assert isinstance(table, Table)
    assert table.rows == [
        ("one panel: a parameter", "1.5", "3", "6"),
        ("one panel: another", "8", "4", "2"),
        ("second panel: another", "1,230", "1,230", "1,230"),
    ]
    Page("A page", [Section("Sensitivity", [plot, table])]).write(tmp_path / "page.md")
    picture = ElementTree.parse(tmp_path / "page" / "sensitivity.svg").getroot()
    texts = [one.text for one in picture.iter("{http://www.w3.org/2000/svg}text")]
    for text in ("one panel", "second panel", "a parameter", "another", "published"):
        assert texts.count(text) == 1, text
    assert texts.count("half") == texts.count("double") == 2
    assert "speed-up (times)" in texts


def test_plots_have_a_dark_style_that_leaves_no_colour_of_paper_or_letters(tmp_path: Path) -> None:
    plot, _ = sensitivity("A plot.", "s", [Varied("a", "b", lambda factor: factor)])
    assert isinstance(plot, Plot)
    Page("A page", [Section("One", [plot])]).write(tmp_path / "page.md")
    text = (tmp_path / "page" / "sensitivity.svg").read_text()
    (sheet,) = re.findall(r"@media \(prefers-color-scheme: dark\)\{(.*)\}</style>", text)
    changed = set(re.findall(r'\[style\*="((?:fill|stroke): #[0-9a-f]{6})"\]', sheet))
    assert {"fill: #ffffff", "stroke: #000000", "stroke: #dddddd"} <= changed
    drawn = set(re.findall(r"(?:fill|stroke): #[0-9a-f]{6}", text.split("</style>")[1]))
    assert {"fill: #ffffff", "stroke: #000000"} <= drawn  # the paper, and axes
