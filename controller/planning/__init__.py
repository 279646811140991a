# SPDX-License-Identifier: Apache-2.0
"""Aggregation trees, levels, slots, windows, and admission of jobs."""
