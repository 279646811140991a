# SPDX-License-Identifier: Apache-2.0
"""Sets the parameters of the hash algorithms crc16_custom and crc32_custom in a running pipeline,
as simple_switch_CLI's set_crc16_parameters and set_crc32_parameters do in BMv2."""

from __future__ import annotations

from dataclasses import dataclass

from switch.codegen.hashes_and_checksums import custom_crcs
from switch.pipeline.keys import check_range
from switch.pipeline.pipeline import Pipeline


@dataclass(frozen=True)
class Crc:
    """Parameters of a CRC in the Rocksoft model.

    polynomial: without its highest bit
    initial: value that the register starts with
    final: value that the register is XORed with at the end
    reflect_in, reflect_out: reflect each input byte, the result
    """

    polynomial: int
    initial: int = 0
    final: int = 0
    reflect_in: bool = False
    reflect_out: bool = False


def set_crc(pipeline: Pipeline, calculation: str, crc: Crc) -> None:
    """Sets the parameters of a calculation. Until then it is CRC-16/ARC or CRC-32, as in BMv2.

    calculation: its name in the JSON. Raises KeyError if the program has no such calculation or
    another algorithm for it, ValueError if a parameter has more bits than the CRC.
    """
    widths = custom_crcs(pipeline.program)
    if calculation not in widths:
        names = ", ".join(widths) or "none"
        raise KeyError(f"no calculation '{calculation}' by a custom CRC; there are: {names}")
    for what in ("polynomial", "initial", "final"):
        value = getattr(crc, what)
        check_range(f"calculation '{calculation}', {what}", value, widths[calculation])
    number = list(widths).index(calculation)
    result = pipeline.native.sw_crc_set(
        pipeline.handle, number, crc.polynomial, crc.initial, crc.final, crc.reflect_in,
        crc.reflect_out,
    )  # fmt: skip
    pipeline.raise_for(result, f"calculation '{calculation}'")
