# SPDX-License-Identifier: Apache-2.0
"""The ``rackhub`` command: arguments, progress, tables, exit codes."""
