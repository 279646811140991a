# SPDX-License-Identifier: Apache-2.0
"""Runs experiments: ``python -m experiments list``, ``python -m experiments NAME [options]``.

Every file of this folder but this one, and every folder but ``common``, is an experiment: its
``main`` (in a folder, that of ``__main__.py``) is the command.
"""

from __future__ import annotations

import importlib
import pkgutil

import click

import experiments


class _Experiments(click.Group):
    """Discovers experiments by their files."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        found = (module.name for module in pkgutil.iter_modules(experiments.__path__))
        return [*super().list_commands(ctx), *(n for n in found if n not in ("common", "__main__"))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.commands or cmd_name not in self.list_commands(ctx):
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f"experiments.{cmd_name}")
        if hasattr(module, "__path__"):
            module = importlib.import_module(f"experiments.{cmd_name}.__main__")
        command: click.Command = module.main
        return command


@click.group(cls=_Experiments, context_settings={"max_content_width": 100})
def main() -> None:
    """Run an experiment on testbeds or in virtual time."""


@main.command("list")
@click.pass_context
def list_(context: click.Context) -> None:
    """List all experiments."""
    names = [name for name in main.list_commands(context) if name not in main.commands]
    for name in names:
        command = main.get_command(context, name)
        assert command is not None
        click.echo(f"{name.ljust(max(map(len, names)))}  {command.get_short_help_str(200)}")


if __name__ == "__main__":
    main(prog_name="python -m experiments")
