# SPDX-License-Identifier: Apache-2.0
"""The top-level command group and the table of its commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from cli.options import Group

_COMMANDS = {
    "run": "cli.run_commands:run_command",
    "chaos": "cli.run_commands:chaos",
    "up": "cli.run_commands:up",
    "submit": "cli.run_commands:submit",
    "jobs": "cli.control:jobs",
    "stop": "cli.control:stop",
    "down": "cli.control:down",
    "status": "cli.control:status",
    "why": "cli.control:why_command",
    "exec": "cli.control:exec_command",
    "trace": "cli.inspect:trace_command",
    "shell": "cli.inspect:shell",
    "graph": "cli.inspect:graph",
    "validate": "cli.inspect:validate",
    "report": "cli.report:report",
    "metrics": "cli.report:metrics",
    "plan": "cli.plan:plan",
    "compare": "cli.compare:compare",
    "sweep": "cli.sweep:sweep",
    "calibrate": "cli.calibrate:calibrate",
    "bench": "cli.bench:bench",
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
