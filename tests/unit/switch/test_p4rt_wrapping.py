# SPDX-License-Identifier: Apache-2.0
"""Tests programs wrapped in a p4.tmp.P4DeviceConfig."""

import pytest

from switch.p4runtime.loading import unwrap

JSON = b'{"__meta__": {"version": [2, 23]}' + b" " * 300 + b"}"
LENGTH = bytes([0x80 | len(JSON) & 0x7F, len(JSON) >> 7])
DATA = b"\x1a" + LENGTH + JSON
EXTRAS = b"\x12\x05\x0a\x03abc"


@pytest.mark.parametrize("before", [b"", b"\x08\x01", b"\x08\x00" + EXTRAS, EXTRAS])
@pytest.mark.parametrize("after", [b"", b"\x08\x01", b"\x25abcd", b"\x21abcdefgh"])
def test_device_data_is_the_program(before, after):
    assert unwrap(before + DATA + after) == JSON


def test_json_is_the_program_itself():
    for text in (JSON, b"\n\t " + JSON, b"{"):
        assert unwrap(text) == text


def test_a_wrapping_without_device_data_has_no_program():
    assert unwrap(b"\x08\x01") == b""
    assert unwrap(b"\x08\x01" + EXTRAS) == b""


@pytest.mark.parametrize("end", range(1, len(LENGTH) + 5))
def test_a_message_that_ends_too_early_is_none(end):
    assert unwrap(DATA[:end]) == DATA[:end]


@pytest.mark.parametrize(
    "text", [b"\x1b\x00", b"\x00\x00", b"\x18\x01", b"\x08" + b"\xff" * 11, b"[1]", b"no"]
)
def test_what_is_no_such_message_is_left_as_it_is(text):
    assert unwrap(text) == text
