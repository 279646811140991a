# SPDX-License-Identifier: Apache-2.0
"""What a testbed is in both clocks: checks before a job, targets, a worker's process, errors."""
