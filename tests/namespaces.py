# SPDX-License-Identifier: Apache-2.0
"""Network namespaces in tests: whether they can be made, and no IPv6 in them.

Root may make them. An ordinary user may inside a user namespace, where `make test` runs the tests
(scripts/with-namespaces.sh).
"""

from __future__ import annotations

import functools
import subprocess

import pytest

from emulation.network.namespaces import NO_IPV6

# Interfaces that are made later in the namespace that runs this have no IPv6: nothing but what a
# test sends is on its links.
WITHOUT_IPV6 = ("sh", "-ec", NO_IPV6)


@functools.cache
def refusal() -> str | None:
    """Why this process may not make network namespaces; None if it may."""
    made = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return None if made.returncode == 0 else made.stderr.strip()


needs_namespaces = pytest.mark.skipif(
    refusal() is not None,
    reason=f"no network namespaces ({refusal()}): run as root, or with scripts/with-namespaces.sh",
)
