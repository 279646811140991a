# SPDX-License-Identifier: Apache-2.0
"""Tests of whole jobs over real switches on simulated links."""
