# SPDX-License-Identifier: Apache-2.0
"""``rackhub``, and ``python -m testbed``: starts the command line."""

import signal


def main() -> None:
    """Runs ``testbed.cli.main``. Ctrl-C ends the process at once as long as it only imports."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # not where it is ignored, as in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from testbed.cli.main import main as run

    signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()
