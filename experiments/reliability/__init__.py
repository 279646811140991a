# SPDX-License-Identifier: Apache-2.0
"""Every fault that a job must survive, and what surviving it took (docs/results/reliability.md)."""
