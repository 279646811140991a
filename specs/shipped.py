# SPDX-License-Identifier: Apache-2.0
"""Finds the project's own topologies and jobs by name."""

from __future__ import annotations

from pathlib import Path

from specs.paths import ROOT
from topologies.model.documents import DocumentError, Problem

_FURTHER = {"jobs": ("jobs/models",)}


def find(given: str | Path, folder: str) -> Path:
    """Returns the path of a file that is given by path or by the name of a shipped one.

    folder: ``jobs``, whose names include those of ``jobs/models``, or ``topologies``. Raises
    ``DocumentError`` if there is none, with the names that there are.
    """
    path = Path(given)
    if path.is_file() or path.suffix or "/" in str(given) or not path.name:
        return path
    folders = (folder, *_FURTHER.get(folder, ()))
    files = [one for name in folders for one in sorted((ROOT / name).glob("*.yaml"))]
    shipped: dict[str, Path] = {file.stem: file for file in files}
    if str(given) not in shipped:
        text = f"is no file, and none of {folder}/: {', '.join(shipped)}"
        raise DocumentError([Problem(str(given), 0, "", text)])
    return shipped[str(given)]
