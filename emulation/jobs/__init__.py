# SPDX-License-Identifier: Apache-2.0
"""One job on a testbed: its file, what it needs, its members, and what came of it."""
