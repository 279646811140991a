# SPDX-License-Identifier: Apache-2.0
"""The command line of `python -m switch`, and what a script that starts BMv2 relies on."""
