# SPDX-License-Identifier: Apache-2.0
"""A testbed in virtual time: a deterministic discrete-event network of the real nodes."""
