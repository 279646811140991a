# SPDX-License-Identifier: Apache-2.0
"""Codecs: how a chunk's float32 values become integers that switches add, and sums values again."""
