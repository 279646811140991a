# SPDX-License-Identifier: Apache-2.0
"""A testbed from its start to its end: what starts it, and its first process."""
