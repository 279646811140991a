# SPDX-License-Identifier: Apache-2.0
"""A process that runs trials: each a line of JSON on standard input, its outcome one on standard
output. What anything else prints goes to standard error."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

from sweeps.execution import execute

_PDEATHSIG = 1  # PR_SET_PDEATHSIG, linux/prctl.h


def main() -> None:
    """Ends with its input, and with the process that started it, given as the argument."""
    # A sweep that is killed must not leave processes that go on with a trial.
    ctypes.CDLL(None, use_errno=True).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):  # it died before
        return
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            told = json.loads(line)
            came = execute(told["known"], told["topology"], told["job"], f"process {os.getpid()}")
            answers.write(json.dumps(came.to_message()) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
