# SPDX-License-Identifier: Apache-2.0
"""The client: a worker's API to a job, blocking or for asyncio."""

from hosts.client.asynchronous import AsyncClient
from hosts.client.blocking import Client, Joined, Stall, Sums

__all__ = ["AsyncClient", "Client", "Joined", "Stall", "Sums"]
