# SPDX-License-Identifier: Apache-2.0
"""Reads p4c's BMv2 JSON into a program, and refuses what the target does not execute."""

from switch.loader.document import load_program, parse_program, read_program

__all__ = ["load_program", "parse_program", "read_program"]
