# SPDX-License-Identifier: Apache-2.0
"""Parts of a testbed that emulation and virtual time share: preflight checks, targets, workers."""
