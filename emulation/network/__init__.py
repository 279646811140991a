# SPDX-License-Identifier: Apache-2.0
"""Mininet networks: namespaces, links, their rates and counters."""
