# SPDX-License-Identifier: Apache-2.0
"""The testbed of a program, and its place in a job, from environment variables that `rackhub exec`
and `rackhub launch` set.

RACKHUB_SERVICE: address of the job service, `unix:PATH`. At hosts also RACKHUB_HOST, the host's
name, RACKHUB_ADDRESS, its IPv4 address, and RACKHUB_QUEUE_BYTES, the limit of its interface's
queue; of the first interface, where it has several. Under `rackhub launch` also RACKHUB_NONCE, the
job's nonce, RACKHUB_RANK, the worker's rank in it, and RACKHUB_WORLD_SIZE, the number of workers.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from hosts.errors import JobRefusedError, ServiceUnavailableError, WrongNonceError

SERVICE = "RACKHUB_SERVICE"
HOST = "RACKHUB_HOST"
ADDRESS = "RACKHUB_ADDRESS"
QUEUE_BYTES = "RACKHUB_QUEUE_BYTES"
NONCE = "RACKHUB_NONCE"
RANK = "RACKHUB_RANK"
WORLD_SIZE = "RACKHUB_WORLD_SIZE"


class Interface(NamedTuple):
    """The interface of this host; None for unset variables."""

    address: str | None
    queue_bytes: int | None


def service() -> str:
    """Returns the job service's address. Raises ServiceUnavailableError if it is not set."""
    try:
        return os.environ[SERVICE]
    except KeyError:
        text = f"no job service was given, and {SERVICE} is not set: `rackhub launch` sets it"
        raise ServiceUnavailableError(text) from None


def interface() -> Interface:
    """Returns this host's interface. Raises ValueError for a queue size that is no number."""
    return Interface(
        os.environ.get(ADDRESS), _number(QUEUE_BYTES, "bytes of the interface's queue")
    )


def nonce() -> str:
    """Returns the job's nonce. Raises WrongNonceError if it is not set."""
    try:
        return os.environ[NONCE]
    except KeyError:
        text = f"no nonce was given, and {NONCE} is not set: `rackhub launch` sets it"
        raise WrongNonceError(text) from None


def rank() -> int:
    """Returns the worker's rank. Raises JobRefusedError if it is not set, ValueError if it is no
    number."""
    found = _number(RANK, "the worker's rank")
    if found is None:
        text = f"no rank was given, and {RANK} is not set: `rackhub launch` sets it"
        raise JobRefusedError(text)
    return found


def _number(name: str, what: str) -> int | None:
    given = os.environ.get(name)
    if given is not None and not given.isdecimal():
        raise ValueError(f"{name}={given}: {what}, a number")
    return None if given is None else int(given)


def own_address() -> str:
    """Returns the IPv4 address that the default route sends from. Raises OSError if there is
    none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1 (RFC 5737); connecting sends nothing
        except OSError as error:
            raise OSError(
                error.errno, f"this host has no default route ({error.strerror}); pass address="
            ) from error
        address: str = probe.getsockname()[0]
        return address
