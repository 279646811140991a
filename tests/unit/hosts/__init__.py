# SPDX-License-Identifier: Apache-2.0
"""Tests of hosts' data, sockets and C code."""
