# SPDX-License-Identifier: Apache-2.0
"""A fuzzer of the embedded target (generated program, runtime, ports) and of hosts' C code, with
sanitizers.

records.h    format of inputs
harness.c    runs one input on a switch with full tables
control.c    concurrent writes and reads of the control plane
kernel.c     fake system calls of the ports; checks that output equals what egress returned
mutate.c     mutations that preserve records, frames and offload headers
worker.c     runs one input on a worker's transport, checks its state and finishes its job
subjects.py  the programs and their tables, C code of hosts, and seed inputs
build.py     builds one executable per subject
"""
