# SPDX-License-Identifier: Apache-2.0
"""Tests of single modules, without root or network."""
