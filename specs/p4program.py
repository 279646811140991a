# SPDX-License-Identifier: Apache-2.0
"""The compiled data plane: which build goes with which sources, and how to make it anew.

``p4src/build/MANIFEST`` lists the SHA-256 of every source and every product in the format of
``sha256sum``, so that ``cd p4src && sha256sum -c build/MANIFEST`` checks it without this project; a
comment line says which p4c made it.
Run as ``python -m specs.p4program`` to compile whatever is out of date.
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

SOURCES = Path(__file__).resolve().parents[1] / "p4src"
COMPILER = "p4c-bm2-ss"
GET_COMPILER = (
    "p4c is not installed. Debian and Ubuntu packages: https://github.com/p4lang/p4c#ubuntu "
    "(package p4lang-p4c); the Vagrant machine has it"
)


@dataclass(frozen=True)
class Build:
    """One build of the sources: its name, the number of 64-lane blocks in a chunk, and the source
    that p4c is given.

    lane_by_lane: sums with a register for each lane. include: a folder with more sources, relative
    to that of the build.
    """

    name: str
    blocks: int
    source: str = "aggregation.p4"
    lane_by_lane: bool = False
    include: str | None = None


BUILDS = (Build("aggregation", 4), Build("aggregation_jumbo", 32), Build("aggregation_headers", 0))


class DataPlaneError(Exception):
    """The data plane cannot be made ready; the message says why and what to do."""


def _products(build: Build) -> tuple[str, str]:
    return f"build/{build.name}.json", f"build/{build.name}.p4info.txtpb"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digests(directory: Path, builds: Sequence[Build]) -> dict[str, str]:
    folders = {"."} | {build.include for build in builds if build.include is not None}
    files = [
        str(Path(folder, path.name))
        for folder in folders
        for path in (directory / folder).glob("*.p4")
    ]
    files += [product for build in builds for product in _products(build)]
    return {
        name: _digest(directory / name) for name in sorted(files) if (directory / name).exists()
    }


def read_manifest(directory: Path = SOURCES) -> dict[str, str]:
    """File name -> SHA-256 of when the data plane was last compiled; empty if it never was."""
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
    """Names of sources and products that are not as the MANIFEST recorded, missing or new."""
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
    """Compile every build and write the MANIFEST; returns the compiler's version.

    say: is told of every build as it begins, for some take long.
    Raises:
        DataPlaneError: p4c is missing, or refuses the program (its messages included).
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
        program, p4info = _products(build)
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
    """Compile if sources changed since the last build; returns the names of what had changed.

    say: as in ``compile_all``.
    Raises:
        DataPlaneError: something changed and p4c is missing or refuses the program.
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
    """Entry point of ``make p4``."""
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
