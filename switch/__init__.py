# SPDX-License-Identifier: Apache-2.0
"""The embedded target: a v1model switch that runs what p4c compiles for BMv2."""

# Of the project and of the distribution rackhub-switch: both pyproject.toml take it from here.
__version__ = "0.1.0"
