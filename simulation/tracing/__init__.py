# SPDX-License-Identifier: Apache-2.0
"""Trace events of a run in virtual time, for ui.perfetto.dev."""
