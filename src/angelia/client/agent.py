"""The object that a person meets first: an agent of this machine, with its mailbox and its server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Generator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self

from angelia.client.agent_verbs import AgentChannels, AgentDms, AgentKeys, AgentMail
from angelia.client.async_client import AsyncClient
from angelia.client.blocking_client import Client
from angelia.client.namespaces import Awaited, Blocking, Mode, Run
from angelia.client.opening import Passphrase, open_mailbox
from angelia.mailbox.mailbox import Mailbox

if TYPE_CHECKING:
    from angelia.client.log_verbs import AsyncLogs, BlockingLogs


class _Namespaces(Generic[Mode]):
    """What both kinds of agents have."""

    def __init__(self, run: Run, url: str, mailbox: Mailbox) -> None:
        self.url = url
        self.mailbox = mailbox
        self.mail: AgentMail[Mode] = AgentMail(run, mailbox)
        self.channels: AgentChannels[Mode] = AgentChannels(run, mailbox)
        self.keys: AgentKeys[Mode] = AgentKeys(run, mailbox)
        self.dms: AgentDms[Mode] = AgentDms(run, mailbox)

    @property
    def handle(self) -> str:
        """The name by which other agents know this one."""
        return self.mailbox.identity.handle

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.handle} at {self.url}>"

    def _close_mailbox(self, ended_by: BaseException | None) -> None:
        """Closes the mailbox. The last message of `listen` is done with, unless Ctrl-C or a cancellation ended its
        loop: then the next one gets it again."""
        try:
            if ended_by is None or isinstance(ended_by, Exception):
                for loop in self.mail.loops:
                    loop.end()
        finally:
            self.mailbox.close()


class Agent(_Namespaces[Blocking]):
    """An agent of this machine. `mail`, `channels`, `logs`, `rooms`, `dms`, `queues` and `keys` have its verbs, which
    block until they are done; `client` is the longer form, with everything else that the server can do, and `mailbox`
    its own side."""

    def __init__(self, client: Client, url: str, mailbox: Mailbox) -> None:
        super().__init__(client.run, url, mailbox)
        self.client = client
        self.rooms = client.rooms
        self.queues = client.queues

    @cached_property
    def logs(self) -> BlockingLogs:
        from angelia.client.log_verbs import BlockingLogs

        return BlockingLogs(self.client, self.mailbox)

    @classmethod
    def open(
        cls,
        name: str | None = None,
        *,
        home: Path | str | None = None,
        url: str | None = None,
        passphrase: Passphrase = None,
        timeout: float = 30.0,
    ) -> Self:
        """Opens an agent that `angelia agent new NAME --register` has made.

        Home and server are found as the command line finds them; with one agent in the home the name may be left out.
        `passphrase` is the key's, if it has one, or a function that returns it, such as `getpass.getpass`."""
        server, mailbox = open_mailbox(name, home, url, passphrase)
        return cls(Client(server, mailbox, timeout=timeout), server, mailbox)

    def close(self) -> None:
        """Ends loops over queues, and closes the mailbox and the connections."""
        ended_by = sys.exception()
        self.queues.close()
        try:
            self._close_mailbox(ended_by)
        finally:
            self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncAgent(_Namespaces[Awaited]):
    """An agent of this machine. `mail`, `channels`, `logs`, `rooms`, `dms`, `queues` and `keys` have its verbs, which
    are awaited; `client` is the longer form, with everything else that the server can do, and `mailbox` its own side.

    Files, SQLite and signatures are worked on in a thread of its own, never on the event loop."""

    def __init__(self, client: AsyncClient, url: str, mailbox: Mailbox) -> None:
        super().__init__(client.run, url, mailbox)
        self.client = client
        self.rooms = client.rooms
        self.queues = client.queues

    @cached_property
    def logs(self) -> AsyncLogs:
        from angelia.client.log_verbs import AsyncLogs

        return AsyncLogs(self.client, self.mailbox)

    @classmethod
    def open(
        cls,
        name: str | None = None,
        *,
        home: Path | str | None = None,
        url: str | None = None,
        passphrase: Passphrase = None,
        timeout: float = 30.0,
    ) -> Opening:
        """Opens an agent as `Agent.open` does: `async with AsyncAgent.open("bob") as bob`, or with `await`."""

        async def opened() -> AsyncAgent:
            server, mailbox = await asyncio.to_thread(open_mailbox, name, home, url, passphrase)
            return cls(AsyncClient(server, mailbox, timeout=timeout), server, mailbox)

        return Opening(opened())

    async def close(self) -> None:
        """Closes the connections and the mailbox."""
        ended_by = sys.exception()
        try:
            await self.client.close()
        finally:
            await asyncio.to_thread(self._close_mailbox, ended_by)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Opening:
    """An agent that is being opened: `async with` opens and closes it, `await` opens it."""

    def __init__(self, opened: Coroutine[Any, Any, AsyncAgent]) -> None:
        self._opened = opened

    def __await__(self) -> Generator[Any, Any, AsyncAgent]:
        return self._opened.__await__()

    async def __aenter__(self) -> AsyncAgent:
        self._agent = await self._opened
        return self._agent

    async def __aexit__(self, *_: object) -> None:
        await self._agent.close()
