# SPDX-License-Identifier: Apache-2.0
"""Tests of the controller and its job service over real switches."""
