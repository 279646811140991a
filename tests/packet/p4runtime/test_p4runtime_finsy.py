# SPDX-License-Identifier: Apache-2.0
"""Tests this target and BMv2 with finsy, another P4Runtime client."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.packet.p4runtime.p4rt_support import JSON_PATH, P4INFO_PATH
from tests.packet.p4runtime.p4rt_targets import BOTH, ROOT, running

# Made by `make setup-test`.
PYTHON = Path(os.environ.get("RACKHUB_FINSY", ROOT / ".venv-finsy/bin/python"))


@pytest.mark.skipif(not PYTHON.exists(), reason=f"no finsy at {PYTHON}: run `make setup-test`")
@pytest.mark.parametrize("kind", BOTH)
def test_finsy_drives_it(kind):
    with running(kind) as (_, address, log):
        done = subprocess.run(
            [PYTHON, "tests/packet/p4runtime/finsy_conversation.py", address, P4INFO_PATH,
             JSON_PATH, kind],
            cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr + log.read_text()
