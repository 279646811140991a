# SPDX-License-Identifier: Apache-2.0
"""Every placement on every target, and what it puts on links (docs/results/placements.md)."""
