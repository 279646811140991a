# SPDX-License-Identifier: Apache-2.0
"""Builds a pipeline from a pushed ForwardingPipelineConfig (P4Runtime spec,
"SetForwardingPipelineConfig RPC", VERIFY).

p4_device_config is p4c's BMv2 JSON as bytes, or a P4DeviceConfig that holds it.
"""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from switch.compiler import CompilerError
from switch.loader import parse_program
from switch.p4runtime.errors import P4RuntimeError, invalid_argument
from switch.p4runtime.p4info.program_check import bind
from switch.p4runtime.p4info.schema import Schema
from switch.p4runtime.pushed_program import Forwarding
from switch.p4runtime.stubs import p4runtime_pb2
from switch.pipeline import Pipeline, PipelineError
from switch.program.errors import ProgramError

_DEVICE_DATA = 3


def build(
    request: p4runtime_pb2.SetForwardingPipelineConfigRequest,
    clock: Callable[[], int] | None = None,
    traced: bool = False,
    priority_queues: int = 1,
) -> Forwarding:
    """Loads and compiles the program of a request; changes nothing else.

    clock, traced, priority_queues: of the pipeline. Raises INVALID_ARGUMENT with the reason if the
    program is missing or cannot be realized.
    """
    config = request.config
    if not request.HasField("config") or not config.p4_device_config:
        raise invalid_argument("config.p4_device_config (the BMv2 JSON of p4c) is not set")
    text = unwrap(config.p4_device_config)
    if not text:
        raise invalid_argument(
            "config.p4_device_config is a P4DeviceConfig whose device_data is not set: it should "
            "hold the BMv2 JSON of p4c"
        )
    if not config.HasField("p4info"):
        raise invalid_argument("config.p4info is not set")
    try:
        schema = Schema.of(config.p4info)
    except P4RuntimeError as error:
        # The spec has this code for every config that cannot be realized.
        raise invalid_argument(error.message) from error
    name = config.p4info.pkg_info.name or "the pushed program"
    try:
        program = parse_program(text, name)
        bound = bind(schema, program)
        pipeline = Pipeline(program, clock=clock, traced=traced, priority_queues=priority_queues)
    except (ProgramError, PipelineError, CompilerError, MemoryError) as error:
        raise invalid_argument(f"the program cannot be realized: {error}") from error
    copy = p4runtime_pb2.ForwardingPipelineConfig()
    copy.CopyFrom(config)  # the caller may continue to use it
    return Forwarding(copy, bound, pipeline)


def unwrap(device_config: bytes) -> bytes:
    """Returns the program in a p4.tmp.P4DeviceConfig, which may be empty; other bytes as they are.

    Old clients of BMv2 wrap programs in that message, which P4Runtime has dropped in 1.0:
    {1: reassign, 2: extras of other targets, 3: the program}.
    """
    # JSON is not such a message, but might look like one: "{" begins a group.
    if device_config.lstrip()[:1] == b"{":
        return device_config
    try:
        parsed = UnknownFieldSet(Empty.FromString(device_config))
    except DecodeError:
        return device_config
    fields = [parsed[index] for index in range(len(parsed))]
    if any(one.field_number == 0 for one in fields):  # there is none, but the parser takes it
        return device_config
    found = [one.data for one in fields if one.field_number == _DEVICE_DATA]
    data = found[-1] if found else b""
    return data if isinstance(data, bytes) else device_config
