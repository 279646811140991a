# SPDX-License-Identifier: Apache-2.0
"""Run directories and what is kept in them: records, metrics, reports, traces."""
