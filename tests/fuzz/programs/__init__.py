# SPDX-License-Identifier: Apache-2.0
"""A differential fuzzer: compiled v1model programs, on this target and on BMv2.

values.py      the numbers that a program compares with, and those that its entries match
entries.py     random P4Runtime updates for everything that a P4Info declares
packets.py     frames along the paths of a program's parser
comparing.py   one program, its entries and its packets on both targets
reducing.py    the fewest entries and packets that still differ; saved cases
generating.py  random P4 programs
"""
