# SPDX-License-Identifier: Apache-2.0
"""ECN marking of IPv4 headers (RFC 3168)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simulation.links.trains import Frames

_TYPE, _VERSION, _TOS, _CHECKSUM = 12, 14, 15, 24
_IPV4_TYPE = 0x0800
_EXPERIENCED = 3
_LEAST = _CHECKSUM + 2


def mark(frames: Frames, rows: npt.NDArray[np.intp]) -> tuple[Frames, int]:
    """Sets Congestion Experienced in the ECN-capable frames of `rows`.

    Returns the frames, a copy if any is marked, and the number of marked ones.
    """
    if frames.shape[1] < _LEAST:
        return frames, 0
    heads = frames[rows, :_LEAST]
    kind = heads[:, _TYPE].astype(np.int64) << 8 | heads[:, _TYPE + 1]
    codes = heads[:, _TOS] & 3
    capable = (kind == _IPV4_TYPE) & (heads[:, _VERSION] >> 4 == 4)
    marked = capable & ((codes == 1) | (codes == 2))
    count = int(np.count_nonzero(marked))
    if not count:
        return frames, 0
    rows, heads, codes = rows[marked], heads[marked], codes[marked]
    made = frames.copy()
    made[rows, _TOS] = heads[:, _TOS] | _EXPERIENCED
    # RFC 1624, equation 3: ~(~checksum + ~before + after); only the low byte of the word changes.
    old = heads[:, _CHECKSUM].astype(np.int64) << 8 | heads[:, _CHECKSUM + 1]
    total = (~old & 0xFFFF) + (_EXPERIENCED - codes.astype(np.int64))
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    made[rows, _CHECKSUM] = checksum >> 8
    made[rows, _CHECKSUM + 1] = checksum & 0xFF
    return made, count
