# SPDX-License-Identifier: Apache-2.0
"""What a job is to be: its file, where its servers are, what it puts on links."""
