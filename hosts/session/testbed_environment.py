# SPDX-License-Identifier: Apache-2.0
"""What a program's environment says of the testbed that it runs on: set by `rackhub exec`.

RACKHUB_SERVICE: where the job service listens, `unix:PATH`. At hosts also RACKHUB_HOST, the host's
name, RACKHUB_ADDRESS, its IPv4 address, and RACKHUB_QUEUE_BYTES, the limit of its interface's
queue; of the first interface, where it has several.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from hosts.errors import ServiceUnavailableError

SERVICE = "RACKHUB_SERVICE"
HOST = "RACKHUB_HOST"
ADDRESS = "RACKHUB_ADDRESS"
QUEUE_BYTES = "RACKHUB_QUEUE_BYTES"


class Interface(NamedTuple):
    """Of this host; None for what the environment does not say."""

    address: str | None
    queue_bytes: int | None


def service() -> str:
    """The job service. Raises ServiceUnavailableError if the environment does not say."""
    try:
        return os.environ[SERVICE]
    except KeyError:
        text = f"no job service was given, and {SERVICE} is not set: `rackhub exec` sets it"
        raise ServiceUnavailableError(text) from None


def interface() -> Interface:
    """This host's. Raises ValueError for a queue's size that is no number."""
    given = os.environ.get(QUEUE_BYTES)
    if given is not None and not given.isdecimal():
        raise ValueError(f"{QUEUE_BYTES}={given}: bytes of the interface's queue, a number")
    return Interface(os.environ.get(ADDRESS), None if given is None else int(given))


def own_address() -> str:
    """The IPv4 address that packets to elsewhere leave from. Raises OSError if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1 (RFC 5737); connecting sends nothing
        except OSError as error:
            raise OSError(
                error.errno, f"this host has no default route ({error.strerror}); pass address="
            ) from error
        address: str = probe.getsockname()[0]
        return address
