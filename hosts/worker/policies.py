# SPDX-License-Identifier: Apache-2.0
"""Names a policy, such as a chunk scheduler, in the error of what it does wrong."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from hosts.errors import PolicyError


@contextmanager
def naming(what: str, policy: type) -> Iterator[None]:
    """Turns exceptions into ``PolicyError``, with the policy's class, file and line.

    what: kind of policy.
    """
    try:
        yield
    except Exception as error:
        try:
            file = inspect.getfile(policy)
        except (OSError, TypeError):  # made in an interpreter's session
            file = policy.__module__
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        where = f"{file}:{lines[-1]}" if lines else file
        text = f"{type(error).__name__}: {error}"
        raise PolicyError(f"{what} {policy.__name__} ({where}): {text}") from error
