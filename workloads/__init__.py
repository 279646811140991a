# SPDX-License-Identifier: Apache-2.0
"""Models, data sets and layer tables; a worker's training, and the reference run."""
