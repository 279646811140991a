# SPDX-License-Identifier: Apache-2.0
"""Drives p4runtime-shell's client in its own environment, over ``shell_bridge.py``."""

import pickle
import subprocess

import grpc
import pytest

from switch.p4runtime.stubs import p4info_pb2, p4runtime_pb2, p4runtime_pb2_grpc
from tests.packet.p4runtime.p4rt_targets import ROOT

# Made by `make setup`.
PYTHON = ROOT / ".venv-shell" / "bin" / "python"
needs_shell = pytest.mark.skipif(
    not PYTHON.exists(), reason=f"no p4runtime-shell at {PYTHON}: run `make setup`"
)


class ShellError(Exception):
    """The client raised an error.

    code: gRPC's status code.
    errors: (index, Error) of each update of a Write that failed.
    """

    def __init__(self, code, errors):
        self.code = grpc.StatusCode[code]
        self.errors = [(i, p4runtime_pb2.Error.FromString(one)) for i, one in errors]
        super().__init__(code, self.errors)


class ShellClient:
    """p4runtime_sh.p4runtime.P4RuntimeClient as far as tests use it.

    stub: for requests that it has no method for, over a channel of this process.
    """

    def __init__(self, device, address, election):
        bridge = "tests/packet/p4runtime/shell_bridge.py"
        numbers = [str(number) for number in (device, *election)]
        self._process = subprocess.Popen(
            [PYTHON, bridge, address, *numbers],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._channel = grpc.insecure_channel(address)
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self._answer()

    def tear_down(self):
        """Ends the client and waits for its end."""
        self._channel.close()
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait(60) == 0

    def api_version(self):
        return self._call("api_version")

    def get_p4info(self):
        return p4info_pb2.P4Info.FromString(self._call("get_p4info"))

    def get_stream_packet(self, kind, timeout=1):
        found = self._call("get_stream_packet", kind, timeout)
        return None if found is None else p4runtime_pb2.StreamMessageResponse.FromString(found)

    def read_one(self, entity):
        found = self._call("read_one", entity.SerializeToString())
        return [p4runtime_pb2.ReadResponse.FromString(one) for one in found]

    def send(self, request):
        """Puts a StreamMessageRequest into the client's stream."""
        self._call("send", request.SerializeToString())

    def set_fwd_pipe_config(self, p4info, program):
        self._call("set_fwd_pipe_config", str(p4info), str(program))

    def write_update(self, update):
        self._call("write_update", update.SerializeToString())

    def _call(self, *call):
        pickle.dump(call, self._process.stdin)
        self._process.stdin.flush()
        return self._answer()

    def _answer(self):
        fine, *answer = pickle.load(self._process.stdout)
        if not fine:
            raise ShellError(*answer)
        return answer[0]


def run_shell(script):
    """Runs a Python script with p4runtime-shell in it; returns the finished process."""
    return subprocess.run(
        [PYTHON, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
