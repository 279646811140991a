# SPDX-License-Identifier: Apache-2.0
"""Why a job waits, and what happened to one chunk."""
