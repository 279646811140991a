# SPDX-License-Identifier: Apache-2.0
"""What a job computes: workloads, a worker's process, and the reference."""
