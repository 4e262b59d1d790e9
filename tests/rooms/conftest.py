"""A server and clients of rooms, as AICQ's are."""

from __future__ import annotations

import pytest

from rooms_clients import RoomClient


@pytest.fixture
async def server(start):
    return await start()


@pytest.fixture
async def ann(server) -> RoomClient:
    return await RoomClient.registered(server, name="ann")


@pytest.fixture
async def bob(server) -> RoomClient:
    return await RoomClient.registered(server, name="bob")
