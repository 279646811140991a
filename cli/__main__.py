# SPDX-License-Identifier: Apache-2.0
"""Entry point of ``rackhub`` and of ``python -m cli``."""

from cli.interrupts import exit_on_interrupt


def main() -> None:
    """Runs ``cli.main``."""
    with exit_on_interrupt():
        from cli.main import main as run
    run()


if __name__ == "__main__":
    main()
