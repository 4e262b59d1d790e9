"""Key bundles over HTTP: published once, chained, fetched by anybody, and never changed behind anybody's back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from angelia.envelope import bundles
from angelia.envelope.ids import KeyType
from angelia.keys.model import BundleAnswer, LinkDocument, parse_bundle, parse_links
from keyholder import KeyHolder, now_ms
from support import Agent, Server

Start = Callable[..., Awaitable[Server]]


@pytest.fixture
async def server(start: Start) -> Server:
    return await start(limits={"keys": "off", "bundles": "off", "register": "off", "identity": "off"})


@pytest.fixture
async def alice(server: Server) -> KeyHolder:
    return await KeyHolder().join(server, "alice")


@pytest.fixture
async def bob(server: Server) -> KeyHolder:
    return await KeyHolder().join(server, "bob")


async def fetched(server: Server, reader: KeyHolder, name: str) -> BundleAnswer:
    answer = await reader.get(server, f"/v1/keys/bundle/{name}")
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=BundleAnswer)


async def test_a_published_bundle_is_fetched_byte_for_byte(server: Server, alice: KeyHolder, bob: KeyHolder) -> None:
    found = parse_bundle((await fetched(server, bob, "alice")).bundle)
    bundles.check_bundle(found)
    assert bundles.trusted_by(found) == alice.last


async def test_rotation(server: Server, alice: KeyHolder, bob: KeyHolder) -> None:
    first = alice.last
    assert first is not None
    await fetched(server, bob, "alice")
    answer = await alice.rotate(server, signer=True)
    assert answer.status_code == 201, answer.text
    assert parse_bundle((await fetched(server, bob, "alice")).bundle).bundle_version == 2
    answer = await bob.get(server, "/v1/keys/bundle/alice?since=1")
    links = parse_links(msgspec.convert(answer.json()["bundles"], list[LinkDocument]))
    assert bundles.follow(first, links) == alice.last
    answer = await alice.post(server, "/v1/keys/prekeys", {"one_time_keys": []})
    assert answer.status_code == 201
