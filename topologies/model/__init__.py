# SPDX-License-Identifier: Apache-2.0
"""The model of a topology: its file, nodes, links, addresses and drawing; units and documents."""
