# SPDX-License-Identifier: Apache-2.0
"""Tests that batch errors fit gRPC's limits."""

import pytest
from google.rpc import code_pb2 as code

from switch.p4runtime.errors import batch_error, not_found
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt

METADATA_BYTES = 8192  # what gRPC's clients take of it by default


@pytest.mark.unit
@pytest.mark.parametrize("text", ["gone", "x" * 3000, "ü" * 300])
@pytest.mark.parametrize("count", [1, 40, 190, 300, 5000])
def test_the_status_of_a_batch_fits(count: int, text: str) -> None:
    errors = [p4rt.Error(), *(not_found(text).to_error() for _ in range(count))]
    status = batch_error("Write", errors).to_status()
    assert status.code == code.UNKNOWN
    assert status.ByteSize() < METADATA_BYTES - 500
    if status.details:
        values = [p4rt.Error() for _ in status.details]
        assert all(one.Unpack(into) for one, into in zip(status.details, values, strict=True))
        assert [one.canonical_code for one in values] == [code.OK, *[code.NOT_FOUND] * count]
    else:
        assert count >= 190
        assert f"failed for {count} of {count + 1}; first, element 1: NOT_FOUND: " in status.message
        assert text[:4] in status.message
