# SPDX-License-Identifier: Apache-2.0
"""Run directories and their content: records, metrics, time series, reports, traces."""
