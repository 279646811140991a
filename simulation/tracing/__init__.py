# SPDX-License-Identifier: Apache-2.0
"""What a run in virtual time writes for ui.perfetto.dev."""
