# SPDX-License-Identifier: Apache-2.0
"""The command line: ``rackhub --help``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from testbed.cli.options import Group

_PLACES = {
    "run": "testbed.cli.running:run_command",
    "chaos": "testbed.cli.running:chaos",
    "up": "testbed.cli.running:up",
    "submit": "testbed.cli.running:submit",
    "jobs": "testbed.cli.asking:jobs",
    "stop": "testbed.cli.asking:stop",
    "down": "testbed.cli.asking:down",
    "status": "testbed.cli.asking:status",
    "why": "testbed.cli.asking:why_command",
    "exec": "testbed.cli.asking:exec_command",
    "trace": "testbed.cli.looking:trace_command",
    "shell": "testbed.cli.looking:shell",
    "graph": "testbed.cli.looking:graph",
    "validate": "testbed.cli.looking:validate",
    "report": "testbed.cli.observing:report",
    "metrics": "testbed.cli.observing:metrics",
    "plan": "testbed.cli.estimating:plan",
    "compare": "testbed.cli.comparing:compare",
    "sweep": "testbed.cli.sweeping:sweep",
    "calibrate": "testbed.cli.calibrating:calibrate",
    "bench": "testbed.bench.cli:bench",
}


@click.group(
    cls=Group,
    places=_PLACES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="rackhub")
def main() -> None:
    """In-network gradient aggregation on emulated racks of P4 switches."""


@main.command()
@click.argument("shell_name", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell_name: str) -> None:
    """Print a completion script: eval "$(rackhub completion bash)"."""
    kind = get_completion_class(shell_name)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "rackhub", "_RACKHUB_COMPLETE").source())


if __name__ == "__main__":
    main()
