# SPDX-License-Identifier: Apache-2.0
"""Links in virtual time: queues, impairments, ECN marking, and trains of frames."""
