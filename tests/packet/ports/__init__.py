# SPDX-License-Identifier: Apache-2.0
"""Tests of ports on real interfaces and in virtual time."""
