# SPDX-License-Identifier: Apache-2.0
"""The command line: ``rackhub --help``."""

from __future__ import annotations

import click

from testbed.bench.cli import bench
from testbed.cli import looking, observing, running
from testbed.cli.calibrating import calibrate
from testbed.cli.comparing import compare
from testbed.cli.estimating import plan
from testbed.cli.options import Group
from testbed.cli.sweeping import sweep


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="rackhub")
def main() -> None:
    """In-network gradient aggregation on emulated racks of P4 switches."""


for command in (
    *running.COMMANDS,
    *looking.COMMANDS,
    *observing.COMMANDS,
    plan,
    compare,
    sweep,
    calibrate,
    bench,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
