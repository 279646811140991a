# SPDX-License-Identifier: Apache-2.0
"""``rackhub bench``: what its commands take and print."""
