# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of hosts and switches on this machine: ``rackhub bench`` (docs/results/benchmarks.md).

They measure the production code, in separate processes pinned to separate cores. Wherever possible
figures are ratios within one run, as machines differ and may be busy with other work.
"""
