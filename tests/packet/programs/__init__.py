# SPDX-License-Identifier: Apache-2.0
"""Tests of programs of tests/p4 against models in Python."""
