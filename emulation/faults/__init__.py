# SPDX-License-Identifier: Apache-2.0
"""Faults: files of them, carrying them out, and what they did to jobs."""
