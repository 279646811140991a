# SPDX-License-Identifier: Apache-2.0
"""Tests that compare this target with BMv2, packet by packet."""
