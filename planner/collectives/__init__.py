# SPDX-License-Identifier: Apache-2.0
"""Collectives: all-reduce algorithms over byte streams, without in-network aggregation."""
