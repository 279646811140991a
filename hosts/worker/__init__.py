# SPDX-License-Identifier: Apache-2.0
"""A worker's side of the protocol: state machines without socket, clock or thread."""
