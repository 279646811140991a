# SPDX-License-Identifier: Apache-2.0
"""``rackhub``, and ``python -m testbed``: starts the command line."""

from testbed.cli.starting import ended_by_interrupt


def main() -> None:
    """Runs ``testbed.cli.main``."""
    with ended_by_interrupt():
        from testbed.cli.main import main as run
    run()


if __name__ == "__main__":
    main()
