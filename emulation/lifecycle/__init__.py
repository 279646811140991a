# SPDX-License-Identifier: Apache-2.0
"""Life cycle of a testbed: launcher, supervisor, control requests, remote commands."""
