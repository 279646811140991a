# SPDX-License-Identifier: Apache-2.0
"""The top-level command group and the table of its commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from cli.options import Group

_COMMANDS = {
    "run": "cli.commands.run:run_command",
    "chaos": "cli.commands.run:chaos",
    "up": "cli.commands.run:up",
    "submit": "cli.commands.run:submit",
    "launch": "cli.commands.launch:launch_command",
    "jobs": "cli.commands.control:jobs",
    "stop": "cli.commands.control:stop",
    "scale": "cli.commands.control:scale",
    "down": "cli.commands.control:down",
    "status": "cli.commands.control:status",
    "why": "cli.commands.control:why_command",
    "exec": "cli.commands.control:exec_command",
    "trace": "cli.commands.inspect:trace_command",
    "shell": "cli.commands.inspect:shell",
    "graph": "cli.commands.inspect:graph",
    "validate": "cli.commands.inspect:validate",
    "runs": "cli.commands.runs:runs",
    "report": "cli.commands.report:report",
    "metrics": "cli.commands.report:metrics",
    "plan": "cli.commands.plan:plan",
    "compare": "cli.commands.compare:compare",
    "sweep": "cli.commands.sweep:sweep",
    "experiment": "cli.commands.experiment:experiment",
    "calibrate": "cli.commands.calibrate:calibrate",
    "bench": "cli.commands.bench:bench",
}


@click.group(
    cls=Group,
    places=_COMMANDS,
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
