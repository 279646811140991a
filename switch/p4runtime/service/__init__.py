# SPDX-License-Identifier: Apache-2.0
"""The gRPC service of a device, and the thread that sends it notifications."""
