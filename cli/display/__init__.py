# SPDX-License-Identifier: Apache-2.0
"""Formats results, tables and progress for a terminal."""
