# SPDX-License-Identifier: Apache-2.0
"""Job, layer, fault and sweep files: read, checked, and what they mean."""
