# SPDX-License-Identifier: Apache-2.0
"""TCP ports for BMv2's Thrift server, which it cannot do without."""

import contextlib
import itertools
import os
import socket

# Below those that the kernel gives to whoever asks for any, so that nobody takes one between here
# and the process that is to have it. Test processes side by side begin apart.
_FIRST, _COUNT = 10_000, 22_000
_numbers = itertools.count(os.getpid() * 97)


def free_port() -> int:
    """A TCP port that nobody has, and that nobody else is given."""
    for number in itertools.islice(_numbers, _COUNT):
        port = _FIRST + number % _COUNT
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError(f"all of {_COUNT} TCP ports are in use")
