# SPDX-License-Identifier: Apache-2.0
"""A differential fuzzer of compiled v1model programs: this target against BMv2.

values.py      values that a program compares with, and that entries match
entries.py     random P4Runtime updates for everything that a P4Info declares
packets.py     frames along the paths of a program's parser
comparison.py  runs a program with its entries and packets on both targets
reduction.py   minimises differing cases; saves cases
rewrites.py    programs rewritten around documented faults of BMv2
generator.py   random P4 programs
"""
