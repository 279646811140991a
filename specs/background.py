# SPDX-License-Identifier: Apache-2.0
"""Background traffic (the fault ``load``), as both clocks send it."""

PORT = 9  # of UDP at both ends: discard (RFC 863)
BURST = 8  # frames, as network cards send what a program hands over at a time
