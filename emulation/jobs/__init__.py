# SPDX-License-Identifier: Apache-2.0
"""One job on a testbed: its workers, counters, diagnostics, recovery from faults and summary."""
