# SPDX-License-Identifier: Apache-2.0
"""The commands of ``rackhub``, a module for each or for a few of one kind."""
