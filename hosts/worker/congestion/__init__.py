# SPDX-License-Identifier: Apache-2.0
"""Congestion windows: how many chunks of a stream are in flight, up to its slots."""
