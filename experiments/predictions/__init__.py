# SPDX-License-Identifier: Apache-2.0
"""The analytic model of `rackhub plan` against runs in virtual time, where both can do it."""
