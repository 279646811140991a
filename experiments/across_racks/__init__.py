# SPDX-License-Identifier: Apache-2.0
"""Experiment: sums across racks, in one level or two."""
