# SPDX-License-Identifier: Apache-2.0
"""A member's session in a job: the job service, membership, calls and checkpoints."""
