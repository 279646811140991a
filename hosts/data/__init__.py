# SPDX-License-Identifier: Apache-2.0
"""Tensors, chunks and what is told of them: values without a protocol."""
