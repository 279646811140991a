# SPDX-License-Identifier: Apache-2.0
"""Parts that experiments share."""
