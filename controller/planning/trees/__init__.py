# SPDX-License-Identifier: Apache-2.0
"""Planners of trees, one for each kind."""
