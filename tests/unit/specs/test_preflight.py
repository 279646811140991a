# SPDX-License-Identifier: Apache-2.0
"""Tests that unrunnable jobs are rejected before anything starts, with file and line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hosts.data.checkpoint import Checkpoint, write
from simulation import session
from specs import jobfile
from specs.fault_schedule import schedule
from specs.faultfile import parse
from specs.p4program import SOURCES, DataPlaneError
from testbed import preflight, preflight_report
from testbed.preflight import Preflight
from testbed.program import program_for, read_program
from tests.conftest import ROOT
from tests.unit.simulation.virtual_session import run
from topologies.model.documents import DocumentError
from topologies.model.spec import read
from workloads.trainer import Replica
from workloads.workloads import shapes

BUILD = SOURCES / "build"
PLANE = read_program(BUILD / "aggregation.json", BUILD / "aggregation.p4info.txtpb")
SHIPPED = ROOT / "topologies"
JOB = "name: x\niterations: 5\nbatch: 8\n"


def checked(topology: Path, *jobs: Path) -> Preflight:
    return preflight.check(read(topology), jobs, PLANE, "embedded")


def problems(tmp_path: Path, topology: str, *jobs: str) -> list[str]:
    """What is wrong with files of these texts (a shipped topology's name stands for it)."""
    at = SHIPPED / f"{topology}.yaml"
    if not at.exists():
        at = tmp_path / "t.yaml"
        at.write_text(topology)
    files = [tmp_path / f"job{number}.yaml" for number in range(len(jobs))]
    for file, text in zip(files, jobs, strict=True):
        file.write_text(text)
    with pytest.raises(DocumentError) as caught:
        checked(at, *files)
    return [line.replace(f"{tmp_path}/", "") for line in str(caught.value).splitlines()]


def rack(workers: int, more: str = "") -> str:
    return f"name: t\nracks:\n  - {{workers: {workers}, servers: 1}}\n{more}"


@pytest.mark.parametrize(
    ("topology", "job", "says"),
    [
        ("two-racks", "tree: core", "job0.yaml:4: tree: packets from w0 to s0 pass no core, only"),
        ("one-rack", "tree: core", "job0.yaml:4: tree: one-rack has no core, which tree core"),
        ("two-racks", "tree: tor\nstreams: 1",
         "job0.yaml:5: streams: stream 0 has servers s0, s1, to which tor0 has different ways;"
         " a multiple of 2 streams"),
        ("two-racks", "window: 8192", "job0.yaml:4: window: core0 has no run of 16384 free slots"),
        ("two-racks", "batchsize: 1", "job0.yaml:4: batchsize: unknown field"),
        (rack(31), "", "job0.yaml:3: batch: 8 cannot be split evenly over 31 workers"),
        # Of other workers than those the batch would be another one.
        (rack(33), "", "t.yaml:3: racks[0].workers: tor0 would have 33 children, 32 are"),
    ],
)  # fmt: skip
def test_a_job_that_cannot_run(tmp_path: Path, topology: str, job: str, says: str) -> None:
    (found,) = problems(tmp_path, topology, JOB + job)
    assert found.startswith(says)


def test_a_rack_of_too_many_workers_is_an_error_of_that_rack(tmp_path: Path) -> None:
    job = "name: x\niterations: 5\nbatch: 40\n"
    (found,) = problems(tmp_path, rack(40), job)
    assert found.startswith("t.yaml:3: racks[0].workers: tor0 would have 40 children, 32 are")
    assert "`placement` in job0.yaml can name some" in found
    named = ", ".join(f"w{n}" for n in range(33))
    job = f"name: x\niterations: 5\nbatch: 33\nplacement:\n  workers: [{named}]\n"
    (found,) = problems(tmp_path, rack(40), job)
    assert found.startswith("job0.yaml:5: placement.workers: tor0 would have 33 children")


def racks(count: int, cores: str, workers: int = 1) -> str:
    return f"name: t\nracks:\n  - {{workers: {workers}, servers: 1, count: {count}}}\n{cores}\n"


def test_more_racks_than_a_core_takes_are_an_error_of_the_cores(tmp_path: Path) -> None:
    job = "name: x\niterations: 5\nbatch: 66\n"
    (found,) = problems(tmp_path, racks(33, "cores: 2\nuplinks: {rate: 1 Mbit/s}"), job)
    assert found == (
        "t.yaml:4: cores: no core is linked to all of core0, core1; `cores: [2, 1]` would do"
    )
    (found,) = problems(tmp_path, racks(33, "cores: 1"), job)
    assert found.startswith("t.yaml:4: cores: core0 would have 33 children (tor0..tor32), 32 are")
    named = ", ".join(f"w{n}" for n in range(33))
    (found,) = problems(tmp_path, racks(33, "cores: 1"), f"{job}placement:\n  workers: [{named}]\n")
    assert found.startswith("job0.yaml:5: placement.workers: core0 would have 33 children")
    (found,) = problems(tmp_path, racks(33, "cores: [2, 1]"), f"{job}tree: tor\n")
    assert found.startswith("job0.yaml:4: tree: the server would have 33 children, 32 are possible")
    # A rack of too many workers is one, however many there are like it.
    (found,) = problems(tmp_path, racks(2, "cores: 1", 33), job)
    assert found.startswith("t.yaml:3: racks[0].workers: tor0 would have 33 children")
    (tmp_path / "t.yaml").write_text(racks(33, "cores: [2, 1]"))
    (tmp_path / "job.yaml").write_text(job)
    fits = checked(tmp_path / "t.yaml", tmp_path / "job.yaml")
    assert fits.warnings == ()
    said = "\n".join(preflight_report.describe(fits, PLANE))
    tree = "core2 over core0 (tor0..tor15 with 16 workers), core1 (tor16..tor32 with 17 workers)"
    assert f"  tree     two-level: {tree}\n" in said


def test_a_topology_has_no_more_routes_than_the_programs_table(tmp_path: Path) -> None:
    """4,160 racks of a worker and a server: as many routes to workers, to servers and to other
    ToRs, and 131 to cores."""
    levels = "cores: [{racks: 32, cores: 1}, {racks: 1024, cores: 1}, 1]"
    (found,) = problems(tmp_path, racks(4160, levels))
    assert found.startswith("t.yaml:2: racks: a switch may need 12615 routes, and the program's")
    assert "table holds 4096" in found
    # Each rack's 128 workers share a path, and so a prefix: 32 more, 31 ToRs, 2 cores, 32 servers,
    # and 128 in the switch's own rack.
    (tmp_path / "t.yaml").write_text(racks(32, "cores: 2", 128))
    assert checked(tmp_path / "t.yaml").topology.racks == 32


@pytest.mark.parametrize(("batch", "fits"), [(1432, True), (1440, True), (1448, False)])
def test_a_batch_is_no_more_than_the_training_set(tmp_path: Path, batch: int, fits: bool) -> None:
    # 1,797 images in ten classes of 174 to 183, a fifth of each (rounded down) held out: 1,442.
    job = f"name: x\niterations: 5\nbatch: {batch}\n"
    if fits:
        path = tmp_path / "job.yaml"
        path.write_text(job)
        assert checked(SHIPPED / "two-racks.yaml", path).jobs
        return
    (found,) = problems(tmp_path, "two-racks", job)
    assert found.startswith("job0.yaml:3: batch: 1448 is more than")
    assert found.endswith("allowed: multiples of 8 up to 1440")


def test_jobs_are_admitted_together(tmp_path: Path) -> None:
    half = JOB + "window: 2048\n"
    refused = problems(tmp_path, "two-racks", half, half, half)
    assert len(refused) == 1
    assert refused[0].startswith("job2.yaml:4: window: core0 has no run of 4096 free slots")
    (tmp_path / "job2.yaml").write_text(f"{half}admission: servers\n")
    # So is one whose server is the root over switches: that takes all steps by itself then.
    (tmp_path / "job3.yaml").write_text(f"{half}admission: servers\nplacement: inc-server\n")
    files = [tmp_path / f"job{number}.yaml" for number in range(4)]
    found = checked(SHIPPED / "two-racks.yaml", *files)
    jobs = preflight_report.facts(found, "embedded")["jobs"]
    assert [(job["tree"], bool(job["slots"]), job["servers"]) for job in jobs] == [
        ("two-level", True, ["s0", "s1"]),
        ("two-level", True, ["s0", "s1"]),
        ("none", False, ["s0", "s1"]),
        ("none", False, ["s0"]),
    ]
    said = "\n".join(preflight_report.describe(found, PLANE))
    assert "none (no slots are left for two-level): the servers over w0..w7" in said
    assert "none (no slots are left for two-level-server): the servers over w0..w7" in said


@pytest.mark.parametrize(
    ("more", "place", "says"),
    [
        ("defaults: {delay: 5 ms}", "t.yaml:4: defaults.delay: ", "allowed: 0 ms"),
        ("links: [{ends: [w1, tor0], delay: 1 ms}]", "t.yaml:4: links[0].delay: ", "w1 to tor0"),
        ("defaults:\n  mtu: 1000", "t.yaml:5: defaults.mtu: ", "packets of 1084 B"),
        ("tls: true", "t.yaml:4: tls: ", "allowed: false"),
    ],
)
def test_a_topology_that_cannot_be_emulated(
    tmp_path: Path, more: str, place: str, says: str
) -> None:
    (found,) = problems(tmp_path, rack(2, more))
    assert found.startswith(place)
    assert says in found


def test_cores_that_carry_nothing_are_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("name: t\nracks: [{workers: 1, servers: 1}, {workers: 1}]\ncores: [2, 1]\n")
    (warning,) = checked(path).warnings
    assert str(warning).startswith(f"{path}:3: cores: core2: carries nothing")
    # Of 33 racks two cores have to be joined, but no more than that; pods have to be anyway.
    path.write_text(racks(33, "cores: [2, 1, 2]"))
    (warning,) = checked(path).warnings
    assert str(warning).startswith(f"{path}:4: cores: core3, core4: carries nothing")
    path.write_text(racks(4, "cores: [{racks: 2, cores: 1}, 2]"))
    assert checked(path).warnings == ()


def test_windows_that_no_queue_holds_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames of four workers to one server; in the window that it names nothing is dropped."""
    links = "defaults: {rate: 1 Gbit/s, queue_bytes: 20 KiB}\n"
    small = "name: x\niterations: 1\nworkload: layers\nlayers: [24 kB]\n"
    large = small.replace("24 kB", "100 kB")

    def warnings_of(topology: str, job: str) -> list[str]:
        (tmp_path / "topology.yaml").write_text(topology)
        (tmp_path / "job.yaml").write_text(job)
        found = checked(tmp_path / "topology.yaml", tmp_path / "job.yaml").warnings
        return [str(warning).removeprefix(f"{tmp_path}/") for warning in found]

    def dropped(topology: str, job: str) -> int:
        files = {"topology.yaml": topology, "job.yaml": job}
        summary = run(tmp_path, monkeypatch, files).run.summary
        return sum(row["dropped"] for row in json.loads(summary.read_text())["links"])

    one = rack(4, f"cores: 0\n{links}")
    (warning,) = warnings_of(one, f"{small}tree: none\nwindow: 16\n")
    assert warning.startswith("job.yaml:6: window: the queue from tor0 to s0 has room for ")
    assert "of the 64 frames that can meet there" in warning
    assert warning.endswith("; a window of 4 fits, or a larger queue_bytes")
    assert dropped(one, f"{small}tree: none\nwindow: 16\n") > 0
    assert warnings_of(one, f"{small}tree: none\nwindow: 4\n") == []
    assert dropped(one, f"{small}tree: none\nwindow: 4\n") == 0
    # Few chunks are never many in a queue, and of switches that sum each is alone on its link:
    assert (
        warnings_of(one, "name: x\niterations: 1\nbatch: 4\nhidden: [1]\ntree: none\nwindow: 64\n")
        == []
    )
    two = "name: t\nracks: [{workers: 2, servers: 1}, {workers: 2}]\ncores: 1\n" + links
    assert warnings_of(two, f"{large}window: 64\n") == []
    # behind a slower one half of a window waits.
    (warning,) = warnings_of(f"{two}uplinks: {{rate: 500 Mbit/s}}\n", f"{large}window: 64\n")
    assert "the queue from tor0 to core0 has room for " in warning
    assert "of the 32 frames" in warning
    # A server below a child of the root: sums to it and from it pass what that child sends.
    above = "name: t\nracks: [{workers: 4, servers: 1}, {workers: 1}]\ncores: 1\n" + links
    (warning,) = warnings_of(above, f"{large}tree: two-level-server\nwindow: 64\n")
    assert "the queue from core0 to tor0 has room for" in warning
    assert dropped(above, f"{large}tree: two-level-server\nwindow: 64\n") > 0
    assert warnings_of(above, f"{large}tree: two-level-server\nwindow: 16\n") == []
    assert dropped(above, f"{large}tree: two-level-server\nwindow: 16\n") == 0
    # The controller's choice is too much only where a queue has no room for a frame of each.
    assert warnings_of(one, f"{small}tree: none\n") == []
    (warning,) = warnings_of(rack(30, f"cores: 0\n{links}"), f"{small}tree: none\n")
    assert warning.startswith("job.yaml:5: tree: the queue from tor0 to s0")
    assert warning.endswith("; use fewer workers, or a larger queue_bytes")


def test_options_of_an_optimizer_are_for_keys_that_the_model_has(tmp_path: Path) -> None:
    keys = "optimizer:\n  keys:\n    bias*: {rate: 1}\n    weights9: {rate: 1}\n"
    job = f"name: x\niterations: 5\nbatch: 4\nhidden: [8]\n{keys}"
    (found,) = problems(tmp_path, rack(2), job)
    assert found == (
        "job0.yaml:8: optimizer.keys.weights9: fits no parameter; there are weights1, biases1,"
        " weights2, biases2"
    )


def test_a_checkpoint_is_one_that_the_job_can_go_on_from(tmp_path: Path) -> None:
    brief = "name: x\niterations: 5\nbatch: 4\nhidden: [8]\n"
    spec = jobfile.parse(brief).spec
    replica = Replica(spec, 0, 2)
    replica.apply(replica.gradients()[1])
    checkpoint = Checkpoint(4, shapes(spec), 256, b"", replica.state())
    file = tmp_path / "x.checkpoint"
    write(file, checkpoint)
    job = f"{brief}restore: x.checkpoint\n"
    (tmp_path / "one-rack.yaml").write_text(rack(2))
    (tmp_path / "job.yaml").write_text(job)
    assert checked(tmp_path / "one-rack.yaml", tmp_path / "job.yaml").jobs
    for others, found in (
        (job.replace("[8]", "[9]"), "of another job: weights1 has 512 elements there, has 576"),
        (f"{job}optimizer: {{name: nesterov}}\n", "another optimizer than nesterov at workers"),
        (f"{job}optimizer: {{name: sgd}}\n", "another optimizer than sgd at workers"),
        (f"{job}optimizer: {{at: servers}}\ntree: tor\n", "than momentum at servers"),
        (f"{job}seed: 2\n", "of a job with seed 1, which held out other examples than seed 2"),
        (job.replace("5", "4"), "after iteration 4, which leaves none of 4"),
    ):
        (said,) = problems(tmp_path, rack(2), others)
        assert said.startswith("job0.yaml:5: restore: x.checkpoint: ")
        assert found in said
    file.write_bytes(file.read_bytes()[:-1])
    (said,) = problems(tmp_path, rack(2), job)
    assert "cut off" in said


def test_a_checkpoint_that_was_given_is_no_problem_of_the_job_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for given, says in (("empty", "begins with other bytes"), ("none", "No such file"), ("", "")):
        file = tmp_path / given
        with pytest.raises(DocumentError) as caught:
            preflight.check(
                read(SHIPPED / "two-racks.yaml"), [ROOT / "jobs" / "digits.yaml"], PLANE,
                "embedded", file,
            )  # fmt: skip
        (line,) = str(caught.value).splitlines()
        assert line.startswith(f"--restore {file}: ")
        assert says in line


EMULATED = sorted(path for path in SHIPPED.glob("*.yaml") if "delay: 5 us" not in path.read_text())
SIMULATED = ("allreduce", "resnet50")
JOBS = sorted(path for path in (ROOT / "jobs").glob("*.yaml") if path.stem not in SIMULATED)


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_files_for_virtual_time(path: Path) -> None:
    file = ROOT / "jobs" / "allreduce.yaml"
    *_, plane = program_for([file])
    assert session.check(read(path), [file], plane).warnings == ()
    if path not in EMULATED:
        with pytest.raises(DocumentError, match=r"have a delay.*or --clock virtual"):
            checked(path, JOBS[0])


@pytest.mark.parametrize("file", JOBS, ids=lambda path: path.stem)
@pytest.mark.parametrize("path", EMULATED, ids=lambda path: path.stem)
def test_shipped_files(path: Path, file: Path) -> None:
    if file.stem == "core" and path.stem != "server-rack":
        with pytest.raises(DocumentError, match="tree core needs"):
            checked(path, file)
        return
    plane = program_for([file])[2]  # chunks without payload are for virtual time
    found = preflight.check(read(path), [file], plane, "embedded", virtual=not plane.sums)
    assert found.warnings == ()


def test_printed_plan_matches_job() -> None:
    found = checked(SHIPPED / "two-racks.yaml", ROOT / "jobs" / "digits.yaml")
    (job,) = found.jobs
    window = job.reservation.window
    assert preflight_report.describe(found, PLANE)[0].endswith(
        "two-racks.yaml: 2 racks, 8 workers, 2 servers, 3 switches, 12 links"
    )
    assert preflight_report.describe(found, PLANE)[2:] == [
        # 64 x 128, 128 x 64 and 64 x 10 weights, each layer's biases in chunks of their own.
        "  model    digits: 17,226 parameters, 70 chunks each way in an iteration",
        "  workers  w0..w7",
        "  servers  s0, s1",
        "  tree     two-level: core0 over tor0 (w0..w3), tor1 (w4..w7)",
        f"  streams  1, window {window} (chunks in flight in each)",
        f"  slots    {2 * window} of 8192 in core0, tor0, tor1",
    ]
    slots = preflight_report.facts(found, "embedded")["jobs"][0]["slots"]
    assert slots == dict.fromkeys(("core0", "tor0", "tor1"), 2 * window)


def test_classes_of_urgency_take_streams_and_slots_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"{JOB}window: 16\nstreams: 2\nschedule: {{order: priority, classes: 4}}\n")
    found = checked(SHIPPED / "two-racks.yaml", path)
    said = preflight_report.describe(found, PLANE)
    assert "  streams  8 (4 classes of 2), window 16 (chunks in flight in each)" in said
    assert "  schedule priority, 4 classes" in said
    job = preflight_report.facts(found, "embedded")["jobs"][0]
    assert job["streams"] == 8
    path.write_text(f"{JOB}window: 16\nschedule: {{order: priority}}\n")
    said = preflight_report.describe(checked(SHIPPED / "two-racks.yaml", path), PLANE)
    [line] = [line for line in said if line.startswith("  streams")]
    assert "8 (8 classes of 1; 6 are used, by as many keys)" in line  # of three layers
    assert job["slots"] == dict.fromkeys(("core0", "tor0", "tor1"), 2 * 16 * 8)


def test_classes_without_slots_are_refused_before_anything_starts(tmp_path: Path) -> None:
    few = "window: 128\nschedule: {order: priority, classes: 16}\n"
    checked_path = tmp_path / "fits.yaml"
    checked_path.write_text(f"{JOB}{few}")
    checked(SHIPPED / "two-racks.yaml", checked_path)  # 16 x 2 x 128 of 8192
    (refused,) = problems(tmp_path, "two-racks", f"{JOB}{few}".replace("16", "128"))
    assert refused.startswith("job0.yaml:4: window: core0 has no run of")


def test_memory_is_stated_and_too_much_of_it_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: x\niterations: 1\nworkload: layers\nlayers: [4 MB]\n")
    found = checked(SHIPPED / "two-racks.yaml", path)
    # 16 bytes of every parameter, and 7 of those of the largest tensor (workloads.memory).
    assert preflight_report.facts(found, "embedded")["jobs"][0]["memory_bytes"] == 8 * 23 * 10**6
    last = preflight_report.describe(found, PLANE)[-1]
    assert last == "  memory   about 184 MB, of all workers together"
    assert found.warnings == ()
    large = ", ".join(["4 GiB"] * 400)
    path.write_text(
        f"name: x\niterations: 1\nworkload: layers\nlayers: [{large}]\npayload: summed\n"
    )
    (warning,) = checked(SHIPPED / "two-racks.yaml", path).warnings
    assert (
        f"{path}:5: payload: gradients and sums of 8 workers take about 55 TB of memory, and"
        in (str(warning))
    )
    assert str(warning).endswith("; `none` takes little, with --clock virtual")


@pytest.mark.parametrize(
    ("jobs", "says"),
    [
        (
            ["streams: 1"],
            "no job sums in core1; jobs and streams take turns at the cores of a level",
        ),
        (["tree: none"], "no job sums in core0, core1"),
        (["placement: {workers: [w0, w1]}"], "no job sums in core0, core1"),
        (["streams: 2"], ""),
        (["streams: 1", "streams: 1"], ""),
        ([], ""),
    ],
)
def test_cores_in_which_no_job_sums_are_named(tmp_path: Path, jobs: list[str], says: str) -> None:
    """A job takes a core; what it does not take may be there for others, so it is no warning."""
    files = [tmp_path / f"job{number}.yaml" for number in range(len(jobs))]
    for file, text in zip(files, jobs, strict=True):
        file.write_text(f"name: x\niterations: 1\nbatch: 16\n{text}\n")
    found = checked(SHIPPED / "four-racks-two-cores.yaml", *files)
    lines = [
        one for one in preflight_report.describe(found, PLANE) if one.startswith("no job sums")
    ]
    assert lines == ([says] if says else [])
    assert found.warnings == ()


def test_the_examples_of_the_documentation(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "reference" / "files.md").read_text()
    topology, job, ordered, layers, faults, slow, scale, load, _sweep = re.findall(
        r"```yaml\n(.*?)```", text, re.DOTALL
    )
    assert layers.startswith("layer_times:")  # tests/unit/specs/test_layer_file.py
    others = "\n".join(one for one in job.splitlines() if not one.startswith("schedule:"))
    (tmp_path / "ordered.yaml").write_text(f"{others}\n{ordered}".replace("slice_bytes", "#"))
    for name, example in (("topology", topology), ("job", job)):
        (tmp_path / f"{name}.yaml").write_text(example)
    checked(tmp_path / "topology.yaml", tmp_path / "ordered.yaml")
    read_back = checked(tmp_path / "topology.yaml", tmp_path / "job.yaml")
    assert [job.file.spec.name for job in read_back.jobs] == ["example"]
    # The values that it says are those of a file without them are.
    (tmp_path / "bare.yaml").write_text(re.sub(r"defaults:.*?(?=racks:)", "", topology, flags=re.S))
    assert read(tmp_path / "bare.yaml").topology.links == read_back.topology.links
    two_racks = read(ROOT / "topologies" / "two-racks.yaml").topology
    listed = faults.count("{at: ")
    assert len(schedule(parse(faults), two_racks)) == listed + 10  # and drawn
    for example in (slow, scale, load):
        found = schedule(parse(example), two_racks)
        # One of a group of hosts is several.
        assert len({fault.place for fault in found}) == example.count("{at: ")


@pytest.mark.parametrize(
    ("program", "p4info", "says"),
    [
        ("LICENSE", "aggregation.p4info.txtpb", "LICENSE: not a program for BMv2"),
        ("aggregation.json", "LICENSE", "LICENSE is not a p4info text file"),
        ("nowhere.json", "aggregation.p4info.txtpb", "nowhere.json: no such file"),
        ("aggregation_headers.json", "aggregation_headers.p4info.txtpb", "have 0 lanes"),
        ("../../tests/p4/router.json", "../../tests/p4/router.p4info.txtpb",
         "router.p4info.txtpb: not a data plane that the controller knows; it differs from"
         " p4src/aggregation.p4: no table 'source_guard.sources'; there are Route.routes"),
    ],
)  # fmt: skip
def test_a_program_that_cannot_carry_gradients(program: str, p4info: str, says: str) -> None:
    def at(name: str) -> Path:
        return ROOT / name if name == "LICENSE" else BUILD / name

    with pytest.raises(DataPlaneError, match=re.escape(says)):
        read_program(at(program), at(p4info))


def test_jobs_without_payload(tmp_path: Path) -> None:
    """Only in virtual time, and all jobs of a run alike: they share one program."""
    topology = read(SHIPPED / "two-racks.yaml")
    jobs = []
    for number, lines in enumerate(("payload: none", "payload: none\nchunk_bytes: 2 KiB", "")):
        jobs.append(tmp_path / f"{number}.yaml")
        head = f"name: job{number}\niterations: 1\nworkload: layers\nlayers: [4 MB]\n"
        jobs[-1].write_text(head + lines)
    with pytest.raises(DocumentError, match=r"0\.yaml:5: payload: only simulated links"):
        preflight.check(topology, jobs[:1], PLANE, "embedded")
    program, _, plane = program_for(jobs)
    assert (program.name, plane.lanes, plane.sums) == ("aggregation_headers.json", 256, False)
    with pytest.raises(DocumentError) as refused:
        preflight.check(topology, jobs, plane, "embedded", virtual=True)
    first, second = str(refused.value).splitlines()
    assert "1.yaml:6: chunk_bytes: 2048 B, and other jobs of the run have chunks of 1024" in first
    assert "2.yaml:1: payload: summed, and other jobs of the run are without payload" in second
    with pytest.raises(DataPlaneError, match="its switches sum chunks of 256 lanes"):
        program_for(jobs, *(BUILD / f"aggregation.{kind}" for kind in ("json", "p4info.txtpb")))


def test_chunks_larger_than_the_links_packets() -> None:
    jumbo = read_program(BUILD / "aggregation_jumbo.json", BUILD / "aggregation_jumbo.p4info.txtpb")
    with pytest.raises(DocumentError, match=r"two-racks\.yaml:\d+: defaults\.mtu: .*2048 lanes"):
        preflight.check(read(SHIPPED / "two-racks.yaml"), [], jumbo, "embedded")
