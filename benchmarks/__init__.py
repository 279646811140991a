# SPDX-License-Identifier: Apache-2.0
"""How fast hosts are on this machine: ``rackhub bench`` (docs/benchmarks.md).

What is measured is the code that trains, between processes of their own, each on a core of its own.
Figures are ratios within one run wherever that is possible, for machines differ and this one
has other work to do.
"""
