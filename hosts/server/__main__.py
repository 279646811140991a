# SPDX-License-Identifier: Apache-2.0
"""``python -m hosts.server``: starts the parameter server process."""

import sys

from hosts.server.process import main

if __name__ == "__main__":
    sys.exit(main())
