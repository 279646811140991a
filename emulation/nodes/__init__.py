# SPDX-License-Identifier: Apache-2.0
"""The processes of a testbed: started, watched, spoken with, started again."""
