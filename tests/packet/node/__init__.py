# SPDX-License-Identifier: Apache-2.0
"""Tests of a switch as a node of an aggregation tree."""
