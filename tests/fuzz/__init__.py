# SPDX-License-Identifier: Apache-2.0
"""A fuzzer of the embedded target: generated program, runtime and ports, under the sanitizers.

records.h    format of inputs
harness.c    runs one input on a switch with full tables
control.c    concurrent writes and reads of the control plane
kernel.c     fake system calls of the ports; checks that output equals what egress returned
mutate.c     mutations that preserve records, frames and offload headers
subjects.py  the programs, their tables, and seed inputs
build.py     builds one executable per program
"""
