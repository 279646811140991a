# SPDX-License-Identifier: Apache-2.0
"""Tests CRCs whose parameters are set at run time."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from switch.pipeline import Pipeline
from switch.pipeline.crc_parameters import Crc, set_crc
from tests.p4 import corpus

SIXTEEN, THIRTY_TWO = "calc", "calc_0"
FRAME = b"123456789" + bytes(3)


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    with corpus("crcs") as made:
        yield made


def sums(pipeline: Pipeline) -> tuple[int, int]:
    """Both CRCs of the nine digits."""
    [(_, out)] = pipeline.inject(1, FRAME)
    return struct.unpack_from(">HI", out)


def test_default_crc_parameters(pipeline: Pipeline) -> None:
    assert sums(pipeline) == (0xBB3D, 0xCBF43926)


# Check values: G. Cook, "Catalogue of parametrised CRC algorithms".
@pytest.mark.parametrize(
    ("crc", "check"),
    [
        (Crc(0x1021, 0xFFFF), 0x29B1),  # CRC-16/IBM-3740, known as CCITT-FALSE
        (Crc(0x1021), 0x31C3),  # XMODEM
        (Crc(0x1021, 0, 0, True, True), 0x2189),  # KERMIT
        (Crc(0x8005, 0xFFFF, 0, True, True), 0x4B37),  # MODBUS
        (Crc(0x3D65, 0, 0xFFFF), 0xC2B7),  # EN-13757
    ],
)
def test_sixteen_bits(pipeline: Pipeline, crc: Crc, check: int) -> None:
    set_crc(pipeline, SIXTEEN, crc)
    assert sums(pipeline) == (check, 0xCBF43926)


@pytest.mark.parametrize(
    ("crc", "check"),
    [
        (Crc(0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, True, True), 0xE3069283),  # CRC-32/ISCSI
        (Crc(0x04C11DB7, 0xFFFFFFFF, 0xFFFFFFFF), 0xFC891918),  # BZIP2
        (Crc(0x04C11DB7, 0, 0xFFFFFFFF), 0x765E7680),  # CKSUM
        (Crc(0x000000AF), 0xBD0BE338),  # XFER
    ],
)
def test_thirty_two_bits(pipeline: Pipeline, crc: Crc, check: int) -> None:
    set_crc(pipeline, THIRTY_TWO, crc)
    assert sums(pipeline) == (0xBB3D, check)


def test_mismatched_crc_width_is_rejected(pipeline: Pipeline) -> None:
    with pytest.raises(KeyError, match=r"no calculation 'none'.*there are: calc, calc_0"):
        set_crc(pipeline, "none", Crc(1))
    with pytest.raises(ValueError, match="polynomial: 0x10000 does not fit in 16 bits"):
        set_crc(pipeline, SIXTEEN, Crc(0x10000))
    assert sums(pipeline) == (0xBB3D, 0xCBF43926)
