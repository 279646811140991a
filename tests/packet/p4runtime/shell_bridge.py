# SPDX-License-Identifier: Apache-2.0
"""p4runtime-shell's client for tests in another process (``shell_client.py``).

    .venv-shell/bin/python tests/packet/p4runtime/shell_bridge.py ADDRESS DEVICE HIGH LOW

It runs in an environment of its own, for it needs an older protobuf than tests. It reads pickled
calls (name, arguments) from standard input until its end, and answers each with (True, result) or
(False, gRPC's code, [(index, Error)]) on standard output. Messages are serialised.
"""

import os
import pickle
import sys

import grpc
from google.protobuf.message import Message
from p4.v1 import p4runtime_pb2
from p4runtime_sh.p4runtime import P4RuntimeClient, P4RuntimeException, P4RuntimeWriteException


def packed(result):
    """Serialises a message."""
    return result.SerializeToString() if isinstance(result, Message) else result


def calls(client):
    """The calls by name, which take serialised messages."""
    request = p4runtime_pb2.StreamMessageRequest.FromString
    update, entity = p4runtime_pb2.Update.FromString, p4runtime_pb2.Entity.FromString
    return {
        "api_version": client.api_version,
        "get_p4info": client.get_p4info,
        "get_stream_packet": client.get_stream_packet,
        "read_one": lambda what: [packed(one) for one in client.read_one(entity(what))],
        "send": lambda message: client.stream_out_q.put(request(message)),
        "set_fwd_pipe_config": client.set_fwd_pipe_config,
        "write_update": lambda what: client.write_update(update(what)),
    }


def main(address, device, *election):
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the client prints
    client = P4RuntimeClient(int(device), address, tuple(map(int, election)))
    known = calls(client)
    answer = (True, None)
    try:
        while True:
            pickle.dump(answer, answers)
            answers.flush()
            name, *arguments = pickle.load(sys.stdin.buffer)
            try:
                answer = (True, packed(known[name](*arguments)))
            except P4RuntimeWriteException as error:
                errors = [(index, one.SerializeToString()) for index, one in error.errors]
                answer = (False, "UNKNOWN", errors)
            except P4RuntimeException as error:
                answer = (False, error.grpc_error.code().name, [])
            except grpc.RpcError as error:
                answer = (False, error.code().name, [])
    except EOFError:
        client.tear_down()


if __name__ == "__main__":
    main(*sys.argv[1:])
