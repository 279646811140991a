# SPDX-License-Identifier: Apache-2.0
"""The testbed in virtual time: a deterministic discrete-event simulation with the real nodes."""
