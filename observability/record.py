# SPDX-License-Identifier: Apache-2.0
"""Creates, finds and reads run directories: logs, captures, sockets, and ``summary.json``.

``runs/<time>-<name>/`` has ``logs/NAME.log`` of every process, ``pcap/`` on request, the files the
run was started with, ``series.jsonl`` and ``summary.json``. ``runs/latest`` points to the newest.
Other users cannot read it.

While a testbed is alive, its processes hold a lock on the file ``.lock`` in its directory, so that
commands find it and detect a crash. The process that started a testbed removes the file at its end;
after a crash, the next command that looks for testbeds does, and notes the crash in the record.
"""

from __future__ import annotations

import datetime
import errno
import fcntl
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO, TypedDict

from observability.messages.jobs import Clock, Target
from observability.messages.summary import RunSummary
from observability.processinfo import tail
from protocol.errors import Error
from specs.paths import ROOT

LOCK = ".lock"
FACTS = "testbed.json"
FAILURE = "failure.txt"
# Mode of folders with secrets: journals and logs may contain jobs' nonces.
PRIVATE = 0o700


class Facts(TypedDict, total=False):
    """Parameters that a testbed is started with: ``testbed.json``. Paths are absolute."""

    topology: str
    """Topology file; in a run directory its own copy."""
    given: str
    """In a run directory: the topology file that the user gave."""
    topology_seed: int
    target: Target
    clock: Clock
    pcap: bool
    """Whether packets are captured."""
    program: str
    """Compiled program."""
    p4info: str
    """Its P4Info."""
    owner: tuple[int, int] | None
    """User and group that the run directory is given to, under sudo."""
    command: str
    """Command line that started it."""
    name: str
    """Name of the testbed."""


class RunError(Error):
    """A run directory cannot be created or found; the text says why."""


def shown(path: Path) -> str:
    """Returns a path for messages: relative to the current folder if it is inside."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def runs_folder() -> Path:
    """Returns the folder of run directories: ``$RACKHUB_RUNS``, or ``runs`` beside the sources."""
    given = os.environ.get("RACKHUB_RUNS")
    return Path(given).resolve() if given else ROOT / "runs"


class RunDirectory:
    """One run's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The testbed's name."""
        return self.facts.get("name", self.path.name)

    @property
    def logs(self) -> Path:
        """Folder of logs, one per process."""
        return self.path / "logs"

    @property
    def sockets(self) -> Path:
        """Folder of Unix sockets, ``sockets/NAME`` in the working directory of processes."""
        return self.path / "sockets"

    @property
    def pcap(self) -> Path:
        """Folder of captures."""
        return self.path / "pcap"

    @property
    def topology(self) -> Path:
        """Copy of the topology file that the run was started with."""
        return self.path / "topology.yaml"

    @property
    def summary(self) -> Path:
        """File with the results."""
        return self.path / "summary.json"

    @property
    def facts(self) -> Facts:
        """Parameters the testbed was started with; empty if the start failed before."""
        try:
            found: Facts = json.loads((self.path / FACTS).read_text())
            return found
        except (OSError, ValueError):
            return {}

    @property
    def failure(self) -> str:
        """Why the testbed failed, with the end of a log; empty if it did not."""
        try:
            return (self.path / FAILURE).read_text().rstrip()
        except OSError:
            return ""

    @property
    def began(self) -> float:
        """Time of its start, in seconds since the epoch."""
        return (self.path / FACTS).stat().st_mtime

    @property
    def last_sign(self) -> float:
        """Time at which one of its processes last wrote something, in seconds since the epoch."""
        written = (file.stat().st_mtime for file in self.logs.glob("*"))
        return max(written, default=self.began)

    @property
    def alive(self) -> bool:
        """True if the testbed is up or being started."""
        try:
            with (self.path / LOCK).open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
        except BlockingIOError:
            return True
        except OSError:
            return False

    def wait_until_gone(self) -> None:
        """Waits until all processes of the testbed have ended."""
        with suppress(FileNotFoundError), (self.path / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    @contextmanager
    def lock(self) -> Iterator[TextIO]:
        """Holds the lock of a live testbed; processes that inherit the open file hold it, too."""
        with (self.path / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield file

    def write_summary(self, summary: RunSummary) -> None:
        """Writes ``summary.json`` atomically."""
        draft = self.summary.with_suffix(".part")
        draft.write_text(json.dumps(summary, indent=2) + "\n")
        draft.replace(self.summary)

    def read_summary(self) -> RunSummary:
        """Reads ``summary.json``; raises ``OSError``, or ``ValueError`` if it is no JSON."""
        found: RunSummary = json.loads(self.summary.read_text())
        return found

    def note_failure(self, message: str, process: str | None) -> None:
        """Adds a ``failure`` to the summary on behalf of the testbed, unless it has one."""
        try:
            summary = self.read_summary()
        except (OSError, ValueError):
            facts = self.facts
            summary = {
                "name": facts.get("name"),
                "target": facts.get("target"),
                "clock": facts.get("clock"),
                "links": [],
                "jobs": [],
            }
        if "failure" not in summary:
            summary["failure"] = {"message": message, "process": process}
            self.write_summary(summary)

    def supervisor(self) -> int | None:
        """Returns its supervisor's process id in this PID namespace; None if there is none."""
        words = [b"-m", b"emulation.lifecycle.supervisor", bytes(self.path)]
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if not entry.name.isdecimal():
                    continue
                # The interpreter itself, not the commands that started it (unshare, sudo).
                if (entry / "cmdline").read_bytes().split(b"\0")[1:4] == words:
                    return int(entry.name)
        return None

    def pids(self) -> dict[int, int]:
        """Maps process ids in the sandbox to those in this PID namespace.

        Empty if the supervisor is not found.
        """
        first = self.supervisor()
        parents: dict[int, int] = {}
        inside: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if not entry.name.isdecimal():
                    continue
                # proc_pid_status(5): NSpid has the ids from the reader's namespace inwards.
                fields = dict(
                    line.split(":\t", 1)
                    for line in (entry / "status").read_text(errors="replace").splitlines()
                    if ":\t" in line
                )
                pid = int(entry.name)
                parents[pid], inside[pid] = int(fields["PPid"]), int(fields["NSpid"].split()[-1])
        found = {}
        for pid, within in inside.items():
            above = pid
            while above in parents and above != first:
                above = parents[above]
            if above == first:
                found[within] = pid
        return found

    def sweep(self, *, in_order: bool = False) -> bool:
        """Removes sockets and lock of a testbed that has ended, and notes it if that was killed.

        in_order: it was not. Otherwise its sockets tell, which its supervisor removes in the end.
        Returns whether it was killed and this is the first to find out.
        """
        with suppress(OSError), (self.path / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self.facts:  # otherwise it is about to start and waits for the lock
                killed = not in_order and self.sockets.exists()
                if killed:
                    self._note_kill()
                self.drop_sockets()
                (self.path / LOCK).unlink()
                return killed
        return False

    def _note_kill(self) -> None:
        """Records that the run ended by SIGKILL, or with the machine."""
        virtual = self.facts.get("clock") == "virtual"
        process = "virtual" if virtual else "supervisor"
        what = "the command that simulated it" if virtual else "its supervisor"
        at = datetime.datetime.fromtimestamp(self.last_sign)
        text = f"{what} was killed, or the machine went down, at about {at:%Y-%m-%d %H:%M:%S}"
        if not self.failure:
            log = tail(self.logs / f"{process}.log")
            (self.path / FAILURE).write_text(f"{text}\n{log}\n")
        self.note_failure(text, None if virtual else process)

    def drop_sockets(self) -> None:
        """Removes its sockets."""
        shutil.rmtree(self.sockets, ignore_errors=True)

    def give_to(self, user: int, group: int) -> None:
        """Changes the owner of the directory and its content; under sudo they belong to root."""
        for entry in (self.path, *self.path.rglob("*")):
            with suppress(FileNotFoundError):
                os.chown(entry, user, group, follow_symlinks=False)


def all_runs() -> list[RunDirectory]:
    """Returns all run directories, the oldest first."""
    folder = runs_folder()
    try:
        found = [p for p in folder.iterdir() if p.is_dir() and not p.is_symlink()]
        marks = LOCK, FACTS  # of a run that is about to start, or has started
        return [RunDirectory(p) for p in sorted(found) if any((p / m).exists() for m in marks)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unusable(folder, error) from error


def live_runs() -> list[RunDirectory]:
    """Returns the run directories of live testbeds; cleans up those of killed ones."""
    live = []
    for run in all_runs():
        if run.alive:
            live.append(run)
        else:
            run.sweep()
    return live


def newest() -> RunDirectory:
    """Returns the newest run, alive or not; raises ``RunError`` if there is none."""
    runs = all_runs()
    if not runs:
        raise RunError(f"there is no run in {runs_folder()}")
    return runs[-1]


def known(name: str) -> RunDirectory:
    """Finds a run, alive or not.

    name: a path, the name of a run directory, ``latest``, or a testbed's name (the newest counts).
    Raises ``RunError`` if there is none.
    """
    runs = all_runs()
    if name == "latest":
        return newest()
    path = Path(name)
    if path.is_dir() and (path / FACTS).exists():
        return RunDirectory(path.resolve())
    for run in reversed(runs):
        if name in (run.path.name, run.name):
            return run
    if path.is_dir():
        raise RunError(f"{path} is no run directory: it has no testbed.json")
    newest_names = ", ".join(run.path.name for run in runs[-3:])
    listed = f"the newest are {newest_names}" if runs else "there is none"
    raise RunError(f"no run {name!r} in {runs_folder()}; {listed}")


def testbeds() -> list[RunDirectory]:
    """Returns live testbeds that answer requests: all but runs in virtual time."""
    return [run for run in live_runs() if run.facts.get("clock") != "virtual"]


def find(name: str | None) -> RunDirectory:
    """Finds the live testbed of this name, or the only one; raises ``RunError`` listing them."""
    live = testbeds()
    listed = ", ".join(run.name for run in live) or "none"
    found = [run for run in live if name in (None, run.name, run.path.name)]
    if len(found) == 1 or (found and name is not None):
        return found[0]
    if found:
        raise RunError(f"several testbeds are up, say which with --on NAME: {listed}")
    virtual = [run for run in live_runs() if name in (None, run.name, run.path.name)]
    if virtual:
        raise RunError(
            f"{virtual[0].name} runs in virtual time and answers no requests: its results will be"
            f" in {shown(virtual[0].summary)}"
        )
    if name is not None:
        raise RunError(f"no testbed {name!r} is up; up: {listed}{_failure_of_last(name)}")
    start = "start one with `rackhub up TOPOLOGY`"
    raise RunError(f"no testbed is up; {start}{_failure_of_last(None)}")


def _failure_of_last(name: str | None) -> str:
    """Returns why the last testbed (of this name) is gone if it failed, and where its logs are."""
    over = [run for run in all_runs() if run.facts.get("clock") != "virtual"]
    for run in reversed(over):
        if name in (None, run.name, run.path.name):
            why = run.failure.partition("\n")[0]
            text = f"\nthe last one, {run.name}, failed: {why}; its logs: {shown(run.logs)}"
            return text if why else ""
    return ""


@contextmanager
def create(name: str, *, chosen: bool, facts: Facts) -> Iterator[RunDirectory]:
    """Creates a run directory and holds its lock while the context lasts; updates ``runs/latest``.

    chosen: the user chose the name: ``RunError`` if a live testbed has it, else it gets a number.
    Raises ``RunError`` if the runs folder cannot be used.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}", name):
        raise RunError(
            f"--name {name!r}: allowed are 1 to 60 letters, digits and . _ -, the first a letter"
            " or digit"
        )
    folder = runs_folder()
    with ExitStack() as held:
        try:
            run = _begin(folder, name, chosen, facts, held)
            _point(folder / "latest", run.path.name)
        except OSError as error:
            raise _unusable(folder, error) from error
        yield run


def _unusable(folder: Path, error: OSError) -> RunError:
    where = error.filename or folder
    at = "" if str(where) == str(folder) else f" (at {where})"
    return RunError(
        f"the runs folder {folder} cannot be used: {error.strerror}{at};"
        " RACKHUB_RUNS=FOLDER in the environment chooses another"
    )


def _begin(folder: Path, name: str, chosen: bool, facts: Facts, held: ExitStack) -> RunDirectory:
    """Creates a run's directory under the lock of the folder; ``held`` takes the run's own lock."""
    if folder.exists() and not folder.is_dir():
        raise _unusable(folder, NotADirectoryError(errno.ENOTDIR, "it is not a folder", folder))
    folder.mkdir(parents=True, exist_ok=True)
    latest = folder / "latest"
    if latest.exists() and not latest.is_symlink():
        raise RunError(
            f"{latest} is in the way: it is not a link; rename it, or choose another folder with"
            " RACKHUB_RUNS=FOLDER in the environment"
        )
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        taken = {run.name for run in live_runs()}
        if name in taken and chosen:
            raise RunError(f"a testbed named {name!r} is up; `rackhub down --on {name}` ends it")
        wanted, number = name, 2
        while name in taken:
            name, number = f"{wanted}-{number}", number + 1
        run = RunDirectory(_make(folder, name))
        (run.path / LOCK).touch()
        held.callback(run.sweep, in_order=True)  # after this process has released the lock
        held.enter_context(run.lock())  # before it has content that another process might sweep
        for part in (run.logs, run.sockets):
            part.mkdir(PRIVATE)
        if "topology" in facts:  # the user's file may change later
            shutil.copyfile(facts["topology"], run.topology)
            copy = str(run.topology.absolute())
            facts = {**facts, "topology": copy, "given": facts["topology"]}
        (run.path / FACTS).write_text(json.dumps({**facts, "name": name}, indent=2) + "\n")
        return run


def _make(folder: Path, name: str) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f".{number}" for number in range(2, 100))):
        path = folder / f"{stamp}{suffix}-{name}"
        try:
            path.mkdir(PRIVATE)
            return path
        except FileExistsError:
            continue
    raise RunError(f"{folder}: too many runs called {name} in one second")


def _point(link: Path, target: str) -> None:
    draft = link.with_name(f".latest-{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(link)


def command_line() -> str:
    """Returns the command line of this program."""
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
