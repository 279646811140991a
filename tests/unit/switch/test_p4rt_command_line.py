# SPDX-License-Identifier: Apache-2.0
"""Tests the command line of `python -m switch`."""

from pathlib import Path

import pytest

from switch import __version__
from switch.cli.options import parse
from switch.p4runtime.service.server import is_local
from switch.ports import PortOptions


def parsed(line):
    return parse(line.split())


def test_the_command_line_of_simple_switch_grpc():
    options = parsed(
        "-i 1@s1-eth1 -i 2@s1-eth2 --pcap pcaps --nanolog ipc:///tmp/x.ipc --device-id 7 "
        "build/x.json --log-console -L debug --thrift-port 9090 -- "
        "--grpc-server-addr 127.0.0.1:50051 --cpu-port 255"
    )
    assert options.ports == {1: PortOptions("s1-eth1"), 2: PortOptions("s1-eth2")}
    assert (options.device_id, options.cpu_port) == (7, 255)
    assert (options.program, options.pcap) == (Path("build/x.json"), Path("pcaps"))
    assert (options.address, options.tls) == ("127.0.0.1:50051", None)
    assert (options.log_console, options.log_level) == (True, "debug")
    assert [one.split()[0] for one in options.ignored] == ["--thrift-port", "--nanolog"]


def test_bmv2_script_starts_with_warnings():
    options = parsed("--no-p4 --log-flush -- --max-mc-groups 64 --disable-swap")
    assert [one.split()[0] for one in options.ignored] == [
        "--max-mc-groups",
        "--log-flush",
        "--disable-swap",
    ]


def test_rates_and_queues_belong_to_ports():
    options = parsed(
        "--no-p4 -i 1@a -i 2@b --port-rate 2=20000000 --port-queue 2=131072 --plain"
        " --port-rate-in 1=1000000"
    )
    assert options.ports[1] == PortOptions("a", rate_in=1_000_000)
    assert options.ports[2] == PortOptions("b", rate=20_000_000, queue_bytes=131072)
    assert options.plain


def test_without_options_it_is_device_1_on_this_machine_only():
    options = parsed("--no-p4 -i 1@a")
    assert (options.device_id, options.address) == (1, "127.0.0.1:9559")
    assert options.ports[1].queue_packets is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "--no-p4"),
        ("x.json --no-p4", "exclude"),
        ("--no-p4 -i eth0", "PORT@INTERFACE"),
        ("--no-p4 -i x@eth0", "no port number"),
        ("--no-p4 -i 511@eth0", "no port number"),
        ("--no-p4 -i 1@an-interface-too-long", "no interface name"),
        ("--no-p4 -i 1@a -i 1@b", "port 1 is a already"),
        ("--no-p4 -i 1@a -i 2@a", "interface a has a port already"),
        ("--no-p4 -i 1@a -- --cpu-port 1", "CPU port"),
        ("--no-p4 -- --cpu-port 0", "not a valid value"),
        ("--no-p4 -- --cpu-port 600", "no port number"),
        ("--no-p4 -- --drop-port 510", "511"),
        ("--no-p4 -- --priority-queues 9", "8"),
        ("--no-p4 --queue-packets -1", "0 to 4294967295"),
        ("--no-p4 --port-rate 1=5", "no -i 1@"),
        ("--no-p4 -i 1@a --port-rate 1", "PORT=NUMBER"),
        ("--no-p4 -i 1@a --port-rate 1=0", "above 0"),
        ("--no-p4 -i 1@a --port-queue 1=2 --port-queue 1=3", "twice"),
        ("--no-p4 -- --grpc-server-addr nowhere", "no address"),
        ("--no-p4 -- --grpc-server-addr unix:", "no path"),
        (f"--no-p4 -- --grpc-server-addr unix:/{'x' * 107}", "108 bytes"),
        ("--no-p4 -- --grpc-server-ssl", "--grpc-server-cert"),
        ("--no-p4 -- --grpc-server-cert x.pem", "--grpc-server-ssl"),
        ("--no-p4 -L loud", "invalid choice"),
        ("--no-p4 --unknown", "unrecognized"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong_and_ends_with_2(line, said, capsys):
    with pytest.raises(SystemExit) as ended:
        parsed(line)
    assert ended.value.code == 2
    usage, error = capsys.readouterr().err.splitlines()  # no list of all options in between
    assert usage.startswith("usage: python -m switch ")
    assert said in error


def test_the_version_is_that_of_the_distribution(capsys):
    with pytest.raises(SystemExit) as ended:
        parsed("--version")
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"python -m switch {__version__}\n"


def test_a_socket_path_of_107_bytes_is_allowed():
    options = parse(["--no-p4", "--", "--grpc-server-addr", "unix:/" + "x" * 106])
    assert options.address.startswith("unix:/xxx")


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("unix:/tmp/x", True),
        ("127.0.0.1:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("switch.example:1", False),
    ],
)
def test_which_addresses_stay_on_this_machine(address, local):
    assert is_local(address) is local
