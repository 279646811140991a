# SPDX-License-Identifier: Apache-2.0
"""Baselines for in-network aggregation: all-reduce among workers, and parameter servers."""
