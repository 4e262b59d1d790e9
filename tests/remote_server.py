"""A server in another process, for the agents that tests have in memory."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx

from angelia.runtime_file import read_runtime
from http_agents import Server
from server_process import ServerProcess


class RemoteServer(Server):
    """Does what `Server` does, over a socket. Agents sign for its `authority`."""

    def __init__(self, process: ServerProcess) -> None:
        runtime = read_runtime(process.data_dir)
        assert runtime is not None
        self.database_url, self.redis_url = runtime.database_url, runtime.redis_url
        token = (process.data_dir / "admin.token").read_text().strip()
        self.process = process
        self.admin_token = token
        self.authority = urlsplit(process.start_url).netloc
        self.client = httpx.AsyncClient(base_url=process.start_url, timeout=40)
