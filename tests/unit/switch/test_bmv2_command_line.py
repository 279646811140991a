# SPDX-License-Identifier: Apache-2.0
"""Tests the command line under BMv2's name: defaults, options, launcher."""

import re
from pathlib import Path

import pytest

from switch.cli.arguments import command_line_of
from switch.cli.bmv2 import BMV2, OWN, identity_of
from switch.cli.launcher import InstallError, install, is_launcher
from switch.cli.options import parse
from switch.ports import PortOptions

BMV2_IDENTITY = identity_of(f"/usr/bin/{BMV2}")
# Of its options_parse.cpp, and of main.cpp of simple_switch_grpc.
EVERY_OPTION = re.findall(
    r"[\w-]+",
    """help interface pcap use-files packet-in thrift-port device-id nanolog log-console log-file
    log-level log-flush log-file-max-size log-file-max-files notifications-addr debugger
    debugger-addr restore-state dump-packet-data version json-version no-p4 max-port-count
    disable-swap grpc-server-addr grpc-server-ssl grpc-server-cacert grpc-server-cert
    grpc-server-key grpc-server-with-client-auth cpu-port drop-port dp-grpc-server-addr
    priority-queues max-mc-groups max-l1-entries max-l2-entries load-modules""",
)


def parsed(line):
    return parse(line.split(), BMV2_IDENTITY)


@pytest.mark.parametrize(
    ("program", "bmv2"),
    [
        ("simple_switch_grpc", True),
        ("/usr/local/bin/simple_switch_grpc", True),
        ("/opt/simple_switch_grpc-fast", True),
        ("/usr/bin/rackhub-switch", False),
        ("/checkout/switch/__main__.py", False),
    ],
)
def test_the_name_decides_whose_defaults_apply(program, bmv2):
    assert identity_of(program).bmv2 is bmv2


def test_every_option_of_bmv2_is_known():
    known = command_line_of(BMV2_IDENTITY).format_help()
    refused = {"use-files", "packet-in", "dp-grpc-server-addr", "restore-state"}
    assert {one for one in EVERY_OPTION if f"--{one}" not in known} == refused


def test_without_options_it_is_as_bmv2_is():
    options = parsed("--no-p4 -i 1@a")
    assert (options.device_id, options.address) == (0, "0.0.0.0:9559")
    assert (options.logs, options.traced, options.pcap) == (False, False, None)
    assert options.ports[1].queue_packets == 64
    assert parsed("--no-p4 -i 1@a --queue-packets 0").ports[1].queue_packets is None


def test_a_log_has_everything_unless_a_level_is_given():
    assert parsed("--no-p4 --log-console").traced
    assert parsed("--no-p4 --log-file x").traced
    assert not parsed("--no-p4 --log-console -L info").traced


def test_a_log_file_is_named_and_turned_over_as_bmv2s():
    options = parsed("--no-p4 --log-file logs/s1.log")
    assert options.log_file == Path("logs/s1.log.txt")
    assert (options.log_bytes, options.log_files) == (5 * 1024 * 1024, 3)
    options = parsed("--no-p4 --log-file s1 --log-file-max-size 9 --log-file-max-files 1")
    assert (options.log_bytes, options.log_files) == (9, 1)


def test_the_command_line_that_p4langs_tutorials_make():
    options = parsed(
        "-i 1@s1-eth1 -i 2@s1-eth2 --pcap . --nanolog ipc:///tmp/bm-0-log.ipc --device-id 0 "
        "build/basic.json --log-console --thrift-port 9090 -- --grpc-server-addr 0.0.0.0:50051"
    )
    assert options.ports == {
        1: PortOptions("s1-eth1", queue_packets=64),
        2: PortOptions("s1-eth2", queue_packets=64),
    }
    assert (options.program, options.thrift_port) == (Path("build/basic.json"), 9090)


def test_captures_without_a_directory_are_where_it_was_started():
    assert parsed("--pcap -i 1@a --no-p4").pcap == Path()
    assert parse(["x.json", "--pcap"], OWN).pcap == Path()


def test_what_means_nothing_here_is_taken_and_said():
    options = parsed(
        "--no-p4 x.json --debugger --log-flush --dump-packet-data 100 -- --grpc-server-cert c.pem"
        " --load-modules m.so"
    )
    assert (options.program, options.tls) == (None, None)
    assert [one.split()[0] for one in options.ignored] == [
        "--dump-packet-data",
        "--load-modules",
        "--debugger",
        "--log-flush",
        "x.json",
        "--grpc-server-cert",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "--no-p4"),
        ("--no-p4 --use-files 0", "-i PORT@INTERFACE"),
        ("--no-p4 --restore-state x", "P4Runtime"),
        ("--no-p4 --pcap /no/such/directory", "no such directory"),
        ("--no-p4 --thrift-port x", "TCP port"),
        ("--no-p4 --log-file x --log-file-max-size 0", "above 0"),
        ("--no-p4 -- --unknown", "unrecognized"),
    ],
)
def test_a_wrong_command_line_ends_with_bmv2s_status(line, said, capsys):
    with pytest.raises(SystemExit) as ended:
        parsed(line)
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert said in error
    assert "simple_switch_grpc: error:" in error


def test_a_launcher_is_made_again_but_replaces_nothing_else(tmp_path):
    path = install(BMV2, tmp_path)
    assert path == tmp_path / BMV2
    assert is_launcher(install(BMV2, tmp_path))
    (tmp_path / f"{BMV2}-real").write_bytes(b"\x7fELF")
    with pytest.raises(InstallError, match="something else"):
        install(f"{BMV2}-real", tmp_path)
    assert (tmp_path / f"{BMV2}-real").read_bytes() == b"\x7fELF"
    assert sorted(one.name for one in tmp_path.iterdir()) == [BMV2, f"{BMV2}-real"]


def test_a_link_to_the_command_is_this_target_too(tmp_path):
    (tmp_path / "rackhub-switch").touch()
    (tmp_path / BMV2).symlink_to("rackhub-switch")
    assert is_launcher(tmp_path / BMV2)


def test_a_launcher_that_cannot_be_made_says_why(tmp_path, capsys):
    with pytest.raises(InstallError, match="begin with simple_switch_grpc"):
        install("bmv2", tmp_path)
    with pytest.raises(SystemExit) as ended:
        parse(["--install-as", BMV2, str(tmp_path / "missing")])
    assert ended.value.code == 1
    assert "missing: no such directory" in capsys.readouterr().err
