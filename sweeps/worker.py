# SPDX-License-Identifier: Apache-2.0
"""A process that runs trials. It reads trials and writes outcomes as lines of JSON on standard
input and output; other output goes to standard error."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

from sweeps.execution import Order, execute

_PDEATHSIG = 1  # PR_SET_PDEATHSIG, linux/prctl.h


def main() -> None:
    """Runs trials until the input ends or the parent process, given by its pid, does."""
    # A killed sweep must not leave processes running.
    ctypes.CDLL(None, use_errno=True).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):  # the parent died before prctl
        return
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            asked = json.loads(line)
            known = asked.pop("known")
            outcome = execute(known, Order(**asked), f"process {os.getpid()}")
            answers.write(json.dumps(outcome.to_message()) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
