# SPDX-License-Identifier: Apache-2.0
"""The codecs by name. A new one is a file beside `fixed32.py` and an entry here."""

from __future__ import annotations

from protocol.codecs.codec import Codec
from protocol.codecs.fixed32 import Fixed32

USUAL: Codec = Fixed32()
CODECS: dict[str, Codec] = {codec.name: codec for codec in (USUAL,)}


def codec_named(name: str) -> Codec:
    """Returns a codec; the usual one for no name. Raises ValueError for an unknown one."""
    codec = CODECS.get(name or USUAL.name)
    if codec is None:
        raise ValueError(f"codec {name!r} is none of {', '.join(CODECS)}")
    return codec
