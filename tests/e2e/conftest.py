"""A server with channels; a relay in front of it that lies, and a person with SQL on its ledger."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from angelia.channels.model import ChannelPolicy
from angelia.client import channel_keys
from angelia.runtime_file import read_runtime
from channel_agents import Talker
from lying_proxy import Liar, lying
from roster_steps import Members, People, through
from server_process import ServerProcess

LIMITS = (
    "register=off,identity=off,keys=off,bundles=off,channels=off,publish=off,channel_commits=off,send=off,receive=off"
)


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(directory / f"channels-{secrets.token_hex(4)}", limits=LIMITS)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def liar(server: ServerProcess) -> Iterator[Liar]:
    with lying(server.start_url) as liar:
        yield liar


@pytest.fixture
def people(server: ServerProcess, tmp_path: Path) -> Iterator[People]:
    made: list[Talker] = []

    def make(name: str) -> Talker:
        made.append(Talker(server, tmp_path, name))
        return made[-1]

    yield make
    for person in made:
        person.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers do not wait for a key that the test knows will not come."""
    monkeypatch.setattr(channel_keys, "_PATIENCE", 0.0)


@pytest.fixture
def sql(server: ServerProcess) -> Callable[..., None]:
    """What a person does who has SQL on the ledger."""

    def run(statement: str, *values: object) -> None:
        async def execute() -> None:
            runtime = read_runtime(server.data_dir)
            assert runtime is not None
            connection = await asyncpg.connect(runtime.database_url)
            try:
                await connection.execute(statement, *values)
            finally:
                await connection.close()

        asyncio.run(execute())

    return run


@pytest.fixture
def members(people: People, liar: Liar) -> Members:
    """Alice's channel; Carol may publish in it, and speaks to the liar; Bob listens."""
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    alice.client.channels.allow(alice.mailbox, channel, carol.name, may_publish=True)
    bob.subscribes(channel)
    through(liar, carol)
    carol.subscribes(channel)
    alice.says(channel, "hello")
    assert carol.hears(channel) == ["hello"]
    return alice, bob, carol, channel
