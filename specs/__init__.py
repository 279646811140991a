# SPDX-License-Identifier: Apache-2.0
"""Job, layer, fault and sweep files: their fields and checks."""
