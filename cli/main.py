# SPDX-License-Identifier: Apache-2.0
"""The command line: ``rackhub --help``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from cli.options import Group

_PLACES = {
    "run": "cli.running:run_command",
    "chaos": "cli.running:chaos",
    "up": "cli.running:up",
    "submit": "cli.running:submit",
    "jobs": "cli.asking:jobs",
    "stop": "cli.asking:stop",
    "down": "cli.asking:down",
    "status": "cli.asking:status",
    "why": "cli.asking:why_command",
    "exec": "cli.asking:exec_command",
    "trace": "cli.looking:trace_command",
    "shell": "cli.looking:shell",
    "graph": "cli.looking:graph",
    "validate": "cli.looking:validate",
    "report": "cli.observing:report",
    "metrics": "cli.observing:metrics",
    "plan": "cli.estimating:plan",
    "compare": "cli.comparing:compare",
    "sweep": "cli.sweeping:sweep",
    "calibrate": "cli.calibrating:calibrate",
    "bench": "cli.bench.cli:bench",
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
