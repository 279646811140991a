# SPDX-License-Identifier: Apache-2.0
"""Tests a summary's weights and chunks, with and without faults."""

from __future__ import annotations

from typing import Any

import pytest

from observability.results import chunks, plans, staleness, weights

NAMES = ("w0", "w1", "w2")

REFERENCE = {"digest": "a", "accuracy": 0.8, "test_loss": 0.5, "in_float32": 0}


def result(digest: str, *, sent: int = 110, retransmitted: int = 0) -> dict[str, Any]:
    statistics = {
        "sent": sent, "retransmitted": retransmitted, "completed": 100, "completed_direct": 0,
        "exponent_rounds": 10, "initial": 0, "wrong_checksum": 1,
    }  # fmt: skip
    return {
        "digest": digest, "accuracy": 0.9, "test_loss": 0.4, "data_sha256": "d", "seconds": [0.1],
        "statistics": statistics, "blocked": {},
    }  # fmt: skip


@pytest.mark.parametrize(("digests", "matches"), [("aaa", True), ("bbb", False), ("aab", False)])
def test_weights_match_only_if_all_workers_have_the_references(digests: str, matches: bool) -> None:
    reports = {rank: result(digest) for rank, digest in enumerate(digests)}
    found = weights(NAMES, reports, {}, REFERENCE)
    assert found["matches_reference"] is matches
    assert found["workers_agree"] is (len(set(digests)) == 1)
    assert found["no_reference"] == ""
    assert found["finished_workers"] == list(NAMES)


def test_unreferenced_weights_are_checked_for_agreement_only() -> None:
    lost = {0: "was killed by SIGKILL"}
    found = weights(NAMES, {1: result("a"), 2: result("a")}, lost, None, "nobody lived to tell")
    assert found["matches_reference"] is None
    assert found["no_reference"] == "nobody lived to tell"
    assert found["lost_workers"] == {"w0": "was killed by SIGKILL"}
    assert found["finished_workers"] == ["w1", "w2"]
    found = weights(NAMES, {1: result("a"), 2: result("b")}, lost, None, "nobody lived to tell")
    assert found["matches_reference"] is False


def test_figures_are_those_of_a_worker_that_was_there_all_the_time() -> None:
    late, early = result("a"), {**result("a"), "seconds": [0.1, 0.2]}
    found = weights(NAMES, {0: late, 1: early}, {}, REFERENCE)
    assert found["seconds_per_iteration"] == [0.1, 0.2]


def test_unknown_figures_are_none_with_reason() -> None:
    reports = {0: result("a"), 1: result("a", sent=113), 2: result("a", sent=115, retransmitted=5)}
    found = chunks(reports, 100, "", 2, served=False)
    assert (found["aggregated_in_network"], found["served_by_server"]) == (100, 0)
    # Three were retransmitted under the number of another epoch.
    assert found["retransmitted"] == 3 + 5 + 2
    found = chunks(reports, None, "tor0 lost what was counted there", None, served=False)
    assert found["aggregated_in_network"] is found["served_by_server"] is None
    assert found["retransmitted_by_switches"] is None
    assert found["retransmitted"] == 3 + 5
    assert found["unknown"] == "tor0 lost what was counted there"


def test_each_plan_says_where_its_sums_were_completed() -> None:
    had = [
        {"epoch": 1, "tree": "two-level", "roots": ["core0"], "chunks": 60},
        {"epoch": 2, "tree": "tor", "roots": ["s0", "s1"], "chunks": 30},
        {"epoch": 4, "tree": "none", "roots": ["s1"], "chunks": 10},
    ]
    early, late = {**result("a"), "seconds": [0.1, 0.1]}, result("a")
    early["statistics"]["plans"], late["statistics"]["plans"] = had, had[1:]
    found = plans({0: late, 1: early})
    assert [(one["by_switch"], one["by_server"]) for one in found] == [(60, 0), (0, 30), (0, 10)]
    for one, plan in zip(found, had, strict=True):
        assert {name: one[name] for name in ("epoch", "tree", "roots")} == {
            name: plan[name] for name in ("epoch", "tree", "roots")
        }


def test_asynchronous_workers_need_not_agree() -> None:
    reports = {0: result("a"), 1: result("b")}
    for rank, (ahead, most) in enumerate([(150, 3), (0, 0)]):
        reports[rank]["statistics"] |= {"ahead": ahead, "most_ahead": most}
    found = weights(NAMES, reports, {}, None, "it depends on who is done when", apart=True)
    assert found["matches_reference"] is None
    assert found["no_reference"] == "it depends on who is done when"
    assert found["workers_agree"] is None
    assert staleness(reports) == {"max": 3, "mean": 0.75}  # over 200 answers
