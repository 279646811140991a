# SPDX-License-Identifier: Apache-2.0
"""A fuzzer of the target: generated program, runtime and ports, under the sanitizers.

records.h    what the fuzzer's bytes mean
harness.c    one input: a switch with full tables, and what happens to it
control.c    what the control plane writes and reads meanwhile
kernel.c     the system calls of its ports; what leaves is what egress returned
mutate.c     mutations that know records, frames and offload headers
subjects.py  the programs, their tables, and inputs to begin with
building.py  all of it into one executable per program
"""
