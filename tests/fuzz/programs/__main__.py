# SPDX-License-Identifier: Apache-2.0
"""Compares compiled v1model programs on this target and on BMv2, with random entries and packets.

    python -m tests.fuzz.programs [--programs DIR] [--generate N] [--minutes 0] [--seed 0]
    python -m tests.fuzz.programs --replay FOLDER

--programs: every NAME.json under a directory that has a NAME.p4info.txtpb (or .p4info.txt) beside
it, and where p4c is installed every NAME.p4. --generate: so many random programs (needs p4c).
Without either, the programs of tests/p4. All of them once with a seed, then with the next, until
the minutes are over. Differences are reduced to the fewest entries and packets,
and kept in runs/fuzz/programs. The exit status is 1 if there is one, or if this target alone
refuses a program. Needs simple_switch_grpc.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from controller.p4rt.entries import P4Info
from switch.loader import parse_program
from switch.program.errors import ProgramError
from tests.fuzz.programs.comparison import Result, compare, difference, differs
from tests.fuzz.programs.entries import Updates
from tests.fuzz.programs.generator import source
from tests.fuzz.programs.packets import Frames
from tests.fuzz.programs.reduction import load, reduced, save
from tests.fuzz.programs.values import Values
from tests.packet.differential.bmv2 import BMV2
from tests.packet.differential.case import Case

ROOT = Path(__file__).parents[3]
FOUND = ROOT / "runs" / "fuzz" / "programs"
BUILDS = ROOT / "runs" / "fuzz" / "builds"
P4INFO_ENDINGS = (".p4info.txtpb", ".p4info.txt", ".p4info.pbtxt")
MOST_SHOWN = 1500  # characters of a difference


@dataclass(frozen=True)
class Subject:
    """A compiled program. name: also names its folder of findings."""

    name: str
    program: Path
    p4info: Path


def subjects(folder: Path) -> Iterator[Subject]:
    """Yields the compiled programs below a folder."""
    for path in sorted(folder.rglob("*.json")):
        name = str(path.relative_to(folder).with_suffix("")).replace(os.sep, "-")
        for ending in P4INFO_ENDINGS:
            p4info = path.with_suffix(ending)
            if p4info.exists():
                yield Subject(name, path, p4info)
                break


def compiled(sources: list[Path], folder: Path, jobs: int) -> tuple[list[Subject], int]:
    """Compiles programs for BMv2 and v1model. Returns those p4c accepts, and the number it
    rejects."""

    def one(path: Path) -> Subject | None:
        program = folder / f"{path.stem}.json"
        subject = Subject(path.stem, program, program.with_suffix(".p4info.txtpb"))
        command = ["p4c-bm2-ss", "--std", "p4-16", "--arch", "v1model", "-o", str(subject.program)]
        command += ["--p4runtime-files", str(subject.p4info), str(path)]
        done = subprocess.run(command, capture_output=True, check=False)
        return subject if done.returncode == 0 and subject.p4info.exists() else None

    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        made = list(pool.map(one, sources))
    return [each for each in made if each is not None], made.count(None)


def case_of(subject: Subject, seed: int, packets: int) -> Case:
    """Draws entries and packets for a program; none if only BMv2 can load it."""
    text = subject.program.read_bytes()
    p4info = P4Info.load(subject.p4info)
    rng = random.Random(f"{seed}/{subject.name}")
    try:
        program = parse_program(text, subject.name)
    except ProgramError:
        return Case(subject.name, text, p4info, (), ())
    values = Values(rng, program)
    updates = Updates(values, p4info.message, program).draw()
    arrivals = Frames(values, program).draw(packets)
    return Case(subject.name, text, p4info, updates, arrivals, anywhere=True)


def examine(subject: Subject, seed: int, packets: int) -> Result:
    """Compares one program; reduces and saves its first finding."""
    folder = FOUND / f"{subject.name}-{seed}"
    case = None
    try:
        case = case_of(subject, seed, packets)
        result = compare(case)
        if result.findings:
            words, worst = result.findings[0]
            save(worst, folder)
            if worst.arrivals:
                worst = reduced(worst, differs)
                result.findings[0] = (difference(worst) or words, worst)
                save(worst, folder)
    except Exception:  # the other programs are compared regardless
        if case is not None:
            save(case, folder)
        return Result(subject.name, findings=[(traceback.format_exc(limit=-4), case)])
    return result


class Report:
    """Prints results as they arrive, and a summary."""

    def __init__(self, as_json: bool) -> None:
        self.total, self._json = 0, as_json
        self._done, self._began = 0, time.monotonic()
        self._count: Counter[str] = Counter()
        self._filtered: Counter[str] = Counter()
        self._refused: list[dict[str, str]] = []
        self._different: list[str] = []

    def add(self, result: Result, seed: int) -> None:
        self._done += 1
        self._count.update(programs=1, packets=result.packets, updates=result.updates)
        self._filtered += result.filtered
        if result.refused_here or result.refused_there:
            by = "both" if result.refused_here and result.refused_there else "us"
            by = by if result.refused_here else "BMv2"
            why = result.refused_here or result.refused_there
            self._refused.append({"program": result.name, "by": by, "why": why})
            self._count[f"refused by {by}"] += 1
            if by == "us":
                self._print(f"{result.name}: refused here: {why[:MOST_SHOWN]}")
        if result.findings:
            self._different.append(result.name)
            words, _ = result.findings[0]
            folder = (FOUND / f"{result.name}-{seed}").relative_to(ROOT)
            self._print(
                f"{result.name}: {len(result.findings)} differences, such as\n"
                f"{words[:MOST_SHOWN]}\n"
                f"  again: python -m tests.fuzz.programs --replay {folder}"
            )
        if self._done % 20 == 0 or self._done == self.total:
            seconds = time.monotonic() - self._began
            self._print(
                f"{self._done} of {self.total} programs, {self._count['packets']} packets, "
                f"{len(self._different)} different, {seconds:.0f} s"
            )

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr if self._json else sys.stdout, flush=True)

    def end(self) -> int:
        """Prints the summary; returns the exit status."""
        if self._json:
            print(json.dumps({
                **self._count, "different": self._different, "filtered": dict(self._filtered),
                "refused": self._refused,
            }))  # fmt: skip
            return self._status()
        refused = ", ".join(
            f"{count} {what}" for what, count in self._count.items() if what.startswith("refused")
        )
        print(
            f"{self._count['programs']} programs, {self._count['updates']} entries, "
            f"{self._count['packets']} packets: {len(self._different)} programs differ"
            f"{'; ' + refused if refused else ''}"
        )
        for rule, count in self._filtered.most_common():
            print(f"  not counted, {count} packets: {rule}")
        return self._status()

    def _status(self) -> int:
        return int(bool(self._different) or self._count["refused by us"] > 0)


def replay(folder: Path) -> int:
    """Runs a saved case and prints its result."""
    try:
        case = load(folder)
    except OSError as error:
        print(
            f"fuzz: no saved case in {folder}: {error.filename}: {error.strerror}", file=sys.stderr
        )
        return 2
    words = difference(case) if case.arrivals else "\n".join(w for w, _ in compare(case).findings)
    print(words or "no difference")
    return int(bool(words))


def main(arguments: list[str] | None = None) -> int:
    assert __doc__
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.programs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--programs", type=Path, metavar="DIR", help="compiled programs")
    parser.add_argument("--generate", type=int, default=0, metavar="N", help="random programs")
    parser.add_argument("--packets", type=int, default=250, metavar="N", help="for each (250)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0, help="then no other seed is begun (0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--only", metavar="TEXT", help="programs whose name has this in it")
    parser.add_argument("--replay", type=Path, metavar="FOLDER", help="a case that was kept")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if BMV2 is None:
        print("fuzz: simple_switch_grpc (BMv2) is not on PATH", file=sys.stderr)
        return 2
    if options.replay:
        return replay(options.replay)
    report, end = Report(options.json), time.monotonic() + 60 * options.minutes
    with ProcessPoolExecutor(options.jobs, initializer=_quiet) as pool:
        for seed in itertools.count(options.seed):
            chosen = _chosen(options, seed)
            if isinstance(chosen, int):
                return chosen
            report.total += len(chosen)
            running = [pool.submit(examine, one, seed, options.packets) for one in chosen]
            for future in as_completed(running):
                report.add(future.result(), seed)
            if time.monotonic() >= end:
                return report.end()
    raise AssertionError("seeds are endless")


def _quiet() -> None:
    """Turns logging off: the report says itself that BMv2 ended, or what p4c left out."""
    logging.disable(logging.CRITICAL)


def _chosen(options: argparse.Namespace, seed: int) -> list[Subject] | int:
    """The programs to compare with a seed, or the exit status."""
    folder = options.programs or ROOT / "tests" / "p4"
    found = [] if options.generate and not options.programs else list(subjects(folder))
    sources = []
    if options.programs:
        have = {one.program.with_suffix("") for one in found}
        sources = [one for one in sorted(folder.rglob("*.p4")) if one.with_suffix("") not in have]
    if options.generate:
        made = BUILDS / f"generated-{seed}"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        for number in range(options.generate):
            path = made / f"random-{seed}-{number}.p4"
            path.write_text(source(random.Random(f"{seed}/{number}")))
            sources.append(path)
    if options.only:
        found = [one for one in found if options.only in one.name]
        sources = [one for one in sources if options.only in one.stem]
    if sources:
        if shutil.which("p4c-bm2-ss") is None:
            print(f"fuzz: p4c is not on PATH: {len(sources)} sources are left out", file=sys.stderr)
        else:
            made, refused = compiled(sources, BUILDS / f"compiled-{seed}", options.jobs)
            print(f"{len(made)} of {len(sources)} sources compiled, {refused} refused by p4c",
                  file=sys.stderr)  # fmt: skip
            found += made
    if not found:
        print(f"fuzz: no compiled program (NAME.json, NAME.p4info.txtpb) in {folder}",
              file=sys.stderr)  # fmt: skip
        return 2
    return found


if __name__ == "__main__":
    sys.exit(main())
