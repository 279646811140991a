# SPDX-License-Identifier: Apache-2.0
"""Network namespaces in tests: availability, and IPv6 disabled in them.

Root may make them. An ordinary user may inside a user namespace, where `make test` runs the tests
(scripts/with-namespaces.sh).
"""

from __future__ import annotations

import functools
import subprocess

import pytest

from emulation.network.namespaces import NO_IPV6

# Disables IPv6 for interfaces created later in the namespace: links carry test packets only.
WITHOUT_IPV6 = ("sh", "-ec", NO_IPV6)


@functools.cache
def refusal() -> str | None:
    """Returns why this process may not create network namespaces; None if it may."""
    made = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return None if made.returncode == 0 else made.stderr.strip()


needs_namespaces = pytest.mark.skipif(
    refusal() is not None,
    reason=f"no network namespaces ({refusal()}): run as root, or with scripts/with-namespaces.sh",
)
