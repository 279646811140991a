# SPDX-License-Identifier: Apache-2.0
"""Files and folders that the documents name exist, and so do documents that sources name."""

from __future__ import annotations

import re
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.conftest import ROOT

TRACKED = subprocess.run(
    ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()
FOLDERS = {str(parent) for path in TRACKED for parent in Path(path).parents}
TOP = "|".join(sorted(folder for folder in FOLDERS if folder != "." and "/" not in folder))
DOCUMENTS = sorted(path for path in TRACKED if path.endswith(".md"))

# A path from the root anywhere, also in commands; a source file's name in backticks, which may
# leave out the folders that the page is about.
FROM_ROOT = re.compile(rf"(?<![\w./-])(?:{TOP})/[\w./*-]*[\w*]")
SOURCE = re.compile(r"`((?:[\w*-]+/)*[\w*-]+\.(?:py|c|h|p4|proto|sh|lua))`")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
CODE = re.compile(r"`[^`]*`")
PAGE = re.compile(r"\bdocs/[\w/-]+\.md\b")

# Readers write the first ones; the others are in other projects.
ELSEWHERE = {"train.py", "my.p4", "X.p4", "base_test.py", "ptf_runner.py", "utils/run_exercise.py"}
ELSEWHERE |= {"nanomsg_client.py", "racks.py"}


def exists(path: str) -> bool:
    """Returns true if `path`, with `*`, is a tracked file or folder, or the end of one's path."""
    paths = (*TRACKED, *FOLDERS)
    return any(fnmatchcase(known, path) or fnmatchcase(known, f"*/{path}") for known in paths)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_named_in_a_document_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    named = set(FROM_ROOT.findall(text)) | set(SOURCE.findall(text)) - ELSEWHERE
    assert sorted(path for path in named if not exists(path)) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_linked_files_exist(document: str) -> None:
    folder = (ROOT / document).parent
    links = LINK.findall(CODE.sub("", (ROOT / document).read_text()))
    assert [link for link in links if not (folder / link).exists()] == []


def test_documents_named_in_sources_exist() -> None:
    missing = {
        (path, page)
        for path in TRACKED
        if path.endswith((".py", ".c", ".h", ".p4", ".sh", ".yaml", "Makefile"))
        for page in PAGE.findall((ROOT / path).read_text())
        if page not in TRACKED
    }
    assert missing == set()
