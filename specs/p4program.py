# SPDX-License-Identifier: Apache-2.0
"""Compiles the data plane and tracks whether its builds are up to date.

``p4src/build/MANIFEST`` lists the SHA-256 of every source and product in the format of
``sha256sum``, so that ``cd p4src && sha256sum -c build/MANIFEST`` checks it without this project; a
comment line has the version of p4c. ``python -m specs.p4program`` compiles what is out of date.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import Error

SOURCES = Path(__file__).resolve().parents[1] / "p4src"
COMPILER = "p4c-bm2-ss"
GET_COMPILER = (
    "p4c is not installed. Debian and Ubuntu packages: https://github.com/p4lang/p4c#ubuntu "
    "(package p4lang-p4c); the Vagrant machine has it"
)


@dataclass(frozen=True)
class Build:
    """One build of the sources.

    blocks: number of 64-lane blocks in a chunk.
    source: file that p4c compiles.
    lane_by_lane: sums with a register for each lane.
    include: folder with more sources, relative to the build's.
    """

    name: str
    blocks: int
    source: str = "aggregation.p4"
    lane_by_lane: bool = False
    include: str | None = None

    @property
    def products(self) -> tuple[str, str]:
        """The program and its p4info, relative to the sources."""
        return f"build/{self.name}.json", f"build/{self.name}.p4info.txtpb"

    def files(self) -> tuple[Path, Path]:
        """Returns the paths of the program and its p4info."""
        program, p4info = self.products
        return SOURCES / program, SOURCES / p4info


USUAL, JUMBO, HEADERS = BUILDS = (
    Build("aggregation", 4), Build("aggregation_jumbo", 32), Build("aggregation_headers", 0),
)  # fmt: skip


class DataPlaneError(Error):
    """The data plane cannot be compiled or used; the text says why and what to do."""


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digests(directory: Path, builds: Sequence[Build]) -> dict[str, str]:
    folders = {"."} | {build.include for build in builds if build.include is not None}
    files = [
        str(Path(folder, path.name))
        for folder in folders
        for path in (directory / folder).glob("*.p4")
    ]
    files += [product for build in builds for product in build.products]
    return {
        name: _digest(directory / name) for name in sorted(files) if (directory / name).exists()
    }


def read_manifest(directory: Path = SOURCES) -> dict[str, str]:
    """Returns the SHA-256 by file name at the last compilation; empty if there was none."""
    path = directory / "build" / "MANIFEST"
    if not path.exists():
        return {}
    recorded = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("#") or not line:
            continue
        match = re.fullmatch(r"([0-9a-f]{64})  (\S+)", line)
        if match is None:
            raise DataPlaneError(f"{path}:{number}: not a line of sha256sum: {line!r}")
        recorded[match[2]] = match[1]
    return recorded


def out_of_date(directory: Path = SOURCES, builds: Sequence[Build] = BUILDS) -> list[str]:
    """Returns the sources and products that differ from the MANIFEST, are missing or new."""
    recorded = read_manifest(directory)
    present = _digests(directory, builds)
    return sorted(
        name for name in recorded.keys() | present.keys() if recorded.get(name) != present.get(name)
    )


def compile_all(
    directory: Path = SOURCES,
    say: Callable[[str], None] = print,
    builds: Sequence[Build] = BUILDS,
) -> str:
    """Compiles every build and writes the MANIFEST; returns the compiler's version.

    say: called with a text at the begin of each build. Raises ``DataPlaneError`` if p4c is missing,
    or refuses the program (with its messages).
    """
    compiler = shutil.which(COMPILER)
    if compiler is None:
        raise DataPlaneError(GET_COMPILER)
    printed = subprocess.run(
        [compiler, "--version"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    ).stdout
    found = re.search(r"Version (\S+)", printed)
    version = found[1] if found else printed.strip()
    (directory / "build").mkdir(exist_ok=True)
    for number, build in enumerate(builds, 1):
        program, p4info = build.products
        say(f"compiling {directory.name}/{program} ({number} of {len(builds)})")
        arguments = [compiler, "--arch", "v1model", "-D", f"BLOCKS={build.blocks}"]
        if build.include is not None:
            arguments += ["-I", ".", "-I", build.include]
        if build.lane_by_lane:
            arguments += ["-D", "LANE_BY_LANE"]
        arguments += ["--p4runtime-files", p4info, "-o", program, build.source]
        result = subprocess.run(arguments, cwd=directory, capture_output=True, text=True)
        if result.returncode != 0:
            raise DataPlaneError(
                f"{COMPILER} refused {directory}/{build.source}:\n{result.stderr.strip()}"
            )
    lines = [f"# p4c {version}"] + [
        f"{digest}  {name}" for name, digest in _digests(directory, builds).items()
    ]
    (directory / "build" / "MANIFEST").write_text("\n".join(lines) + "\n")
    return version


def make_ready(
    directory: Path = SOURCES,
    say: Callable[[str], None] = print,
    builds: Sequence[Build] = BUILDS,
) -> list[str]:
    """Compiles if sources changed since the last build; returns the names of changed files.

    say: as of ``compile_all``. Raises ``DataPlaneError`` if something changed and p4c is missing or
    refuses the program.
    """
    changed = out_of_date(directory, builds)
    if changed:
        if shutil.which(COMPILER) is None:
            listed = ", ".join(changed)
            raise DataPlaneError(
                f"{directory}: changed since the last compilation: {listed}. {GET_COMPILER}"
            )
        compile_all(directory, say, builds)
    return changed


def main(directory: Path = SOURCES, builds: Sequence[Build] = BUILDS) -> int:
    """Compiles what is out of date, for ``make p4``; returns the exit status."""
    try:
        changed = make_ready(directory, builds=builds)
    except DataPlaneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    build = directory / "build"
    print(f"compiled (changed: {', '.join(changed)})" if changed else f"{build} is up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
