# SPDX-License-Identifier: Apache-2.0
"""Entry point of ``rackhub`` and of ``python -m cli``."""

import gc

from cli.importing import importing


def main() -> None:
    """Runs ``cli.main``."""
    with importing():
        from cli.main import main as run
    try:
        run()
    finally:
        gc.freeze()  # all memory is about to be freed: not first looked through, several times


if __name__ == "__main__":
    main()
