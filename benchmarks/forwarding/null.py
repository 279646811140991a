# SPDX-License-Identifier: Apache-2.0
"""The null switch, the minimum of work on packet sockets: ``python -m benchmarks.forwarding.null``.

See native/null.c. Prints ``ready`` once it reads, and runs until it is killed.
"""

from __future__ import annotations

import argparse

from benchmarks.forwarding.native import CROSS, GATHER, forward_nothing
from benchmarks.forwarding.traffic import NUMBER_AT


def main() -> None:
    """Forwards between the interfaces of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forwarding.null")
    parser.add_argument("interfaces", nargs=4, help="of ports 1 to 4")
    parser.add_argument("--gso", action="store_true", help="read and write GSO frames whole")
    parser.add_argument(
        "--cross", action="store_true", help="from 1 to 2, 2 to 1, 3 to 4 and 4 to 3"
    )
    parser.add_argument("--batch", type=int, default=32, help="frames of a system call")
    options = parser.parse_args()
    forward_nothing(
        options.interfaces,
        CROSS if options.cross else GATHER,
        NUMBER_AT,
        options.gso,
        options.batch,
        lambda: print("ready", flush=True),
    )


if __name__ == "__main__":
    main()
