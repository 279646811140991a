# SPDX-License-Identifier: Apache-2.0
"""Runs the examples of docs/howto/use-the-api.md with two workers against the real services."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.packet.controller.loopback_rig import Loopback, loopback

pytestmark = pytest.mark.timeout(120)

API = ROOT / "docs" / "howto" / "use-the-api.md"
EXAMPLE = re.compile(r'^```python title="(starter|worker)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
WORKERS = ["w0", "w1"]


@pytest.fixture
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with loopback(tmp_path_factory.mktemp("j") / "jobs") as rig:
        yield rig


def run(code: Any, names: dict[str, Any]) -> None:
    """An example, in a worker that leaves if it fails, so that the other one does not wait."""
    try:
        exec(code, names)
    except BaseException as error:
        if "client" in names:
            names["client"].leave(f"its example failed: {error!r}")
        raise


def test_examples_in_the_documentation(rig: Loopback, tmp_path: Path) -> None:
    text = API.read_text()
    examples = list(EXAMPLE.finditer(text))
    assert len(examples) == text.count("```python")
    workers: list[dict[str, Any]] = [
        {"service": rig.service, "rank": rank, "address": rig.address(host), "folder": tmp_path}
        for rank, host in enumerate(WORKERS)
    ]
    with ThreadPoolExecutor(len(WORKERS)) as pool:
        for example in examples:
            # Lines of errors are those of the file.
            before = text[: example.start(2)].count("\n")
            code = compile("\n" * before + example[2], str(API), "exec")
            if example[1] == "worker":
                for done in [pool.submit(run, code, names) for names in workers]:
                    done.result()
                continue
            starter = dict(workers[0])
            exec(code, starter)
            rig.serve(starter["nonce"])
            for names in workers:
                names |= {**starter, **names, "nonce": starter["nonce"]}
