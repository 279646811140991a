# SPDX-License-Identifier: Apache-2.0
"""Tensors, chunks, submissions, snapshots and reports: values without a protocol."""
