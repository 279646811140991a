# SPDX-License-Identifier: GPL-2.0-only
"""Fuzz the target and the hosts: all subjects share some minutes, in parallel on all cores.

    python -m tests.fuzz [--minutes 10] [--coverage] [SUBJECT ...]
    python -m tests.fuzz programs ...      compares programs with BMv2 (tests/fuzz/programs)

Inputs that reach new code are kept in runs/fuzz as seeds of the next run. Inputs that fail an
assertion or a sanitizer are written to tests/fuzz/regressions/SUBJECT, where the tests replay them,
and the exit status is 1. --coverage prints which lines were reached, instead.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.fuzz.build import COVERAGE, REGRESSIONS, build, compiler, write_seeds
from tests.fuzz.programs.__main__ import main as compare_programs
from tests.fuzz.subjects import ROOT, SUBJECTS

WORK = ROOT / "runs" / "fuzz"


def fuzz(name: str, seconds: int) -> tuple[str, str]:
    """Fuzzes one subject; returns (outcome, output)."""
    findings = REGRESSIONS / name
    findings.mkdir(parents=True, exist_ok=True)
    corpus = WORK / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    run = subprocess.run(
        [
            str(WORK / name), f"-max_total_time={seconds}", "-max_len=16384", "-timeout=60",
            "-rss_limit_mb=2048", f"-artifact_prefix={findings}/", "-print_final_stats=1",
            str(corpus), str(WORK / "seeds" / name), str(findings),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = run.stderr
    if run.returncode:
        return "FOUND", said
    inputs = re.search(r"number_of_executed_units: (\d+)", said)
    reached = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", said)
    edges, features, kept = reached[-1] if reached else ("?", "?", "?")
    count = inputs[1] if inputs else "?"
    return f"{count} inputs, {edges} edges, {features} features, {kept} inputs kept", said


def coverage(names: list[str]) -> None:
    """Prints the share of each file's lines that kept inputs reach."""
    version = re.search(r"version (\d+)", subprocess.check_output([str(compiler()), "--version"],
                                                                 text=True))  # fmt: skip
    suffix = f"-{version[1]}" if version else ""
    raw = []
    for name in names:
        inputs = [str(one) for part in ("corpus", "seeds") for one in
                  sorted((WORK / part / name).glob("*"))]  # fmt: skip
        raw.append(WORK / "coverage" / f"{name}.profraw")
        subprocess.run([str(WORK / "coverage" / name), *inputs], check=True, capture_output=True,
                       env={**os.environ, "LLVM_PROFILE_FILE": str(raw[-1])})  # fmt: skip
    merged = WORK / "coverage" / "merged"
    subprocess.run([f"llvm-profdata{suffix}", "merge", "-o", str(merged), *map(str, raw)],
                   check=True)  # fmt: skip
    objects = [word for name in names[1:] for word in ("-object", str(WORK / "coverage" / name))]
    subprocess.run(
        [f"llvm-cov{suffix}", "report", str(WORK / "coverage" / names[0]), *objects,
         f"-instr-profile={merged}", "--show-region-summary=false", "--show-branch-summary=false"],
        check=True,
    )  # fmt: skip


def main() -> int:
    assert __doc__
    if "programs" in sys.argv[1:]:
        at = sys.argv.index("programs")
        return compare_programs(sys.argv[1:at] + sys.argv[at + 1 :])
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(SUBJECTS))
    parser.add_argument("--minutes", type=float, default=10, help="for all of them (10)")
    parser.add_argument("--coverage", action="store_true", help="of what was kept")
    options = parser.parse_args()
    names = options.subjects or list(SUBJECTS)
    if unknown := set(names) - set(SUBJECTS):
        parser.error(f"no subject {', '.join(sorted(unknown))}; there are {', '.join(SUBJECTS)}")
    if compiler() is None:
        print("fuzz: clang is missing; `make setup-test` installs it", file=sys.stderr)
        return 2
    subjects = {name: SUBJECTS[name]() for name in names}
    for name, subject in subjects.items():
        write_seeds(subject, WORK / "seeds" / name)
    if options.coverage:
        build(subjects, WORK / "coverage", COVERAGE)
        coverage(names)
        return 0
    build(subjects, WORK)
    cores = os.cpu_count() or 1
    seconds = max(1, int(60 * options.minutes * min(cores, len(names)) / len(names)))
    failed = False
    with ThreadPoolExecutor(cores) as pool:
        for name, (outcome, said) in zip(
            names, pool.map(lambda name: fuzz(name, seconds), names), strict=True
        ):
            print(f"{name}: {outcome} in {seconds} s", flush=True)
            if outcome == "FOUND":
                failed = True
                print(said[-6000:], file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
