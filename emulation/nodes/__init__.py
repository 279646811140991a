# SPDX-License-Identifier: Apache-2.0
"""Switch, controller, server and worker processes: starting, supervising, querying."""
