"""A server in a process of its own, to be talked to by the agents that tests have in memory."""

from __future__ import annotations

import httpx

from angelia.stores.embedded.datadir import read_runtime
from processes import ServerProcess
from support import HOST, Server


class RemoteServer(Server):
    """What `Server` does, over a socket. Requests are signed for `HOST`, and say so."""

    def __init__(self, process: ServerProcess) -> None:
        runtime = read_runtime(process.data_dir)
        assert runtime is not None
        self.database_url, self.redis_url = runtime.database_url, runtime.redis_url
        token = (process.data_dir / "admin.token").read_text().strip()
        self.process = process
        self.admin_token = token
        self.client = httpx.AsyncClient(base_url=process.start_url, headers={"host": HOST}, timeout=40)
