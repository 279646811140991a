# SPDX-License-Identifier: Apache-2.0
"""The command line: what `rackhub` can be told, and how answers look."""
