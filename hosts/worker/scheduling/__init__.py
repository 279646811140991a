# SPDX-License-Identifier: Apache-2.0
"""Chunk schedulers: the order in which a worker's chunks are sent, and the streams they take."""
