"""An agent in channels, over HTTP: it makes them, listens, publishes what it sealed itself, and reads."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import httpx
import msgspec

from angelia.envelope import json_form, media_type
from angelia.envelope.rosters import Member as Listed
from angelia.envelope.rosters import Roster, roster_document, sign_roster
from angelia.envelope.sealing import EpochKey, Letter, seal, unseal_post
from angelia.envelope.wire import Envelope
from http_agents import Server
from keyholder import KeyHolder, now_ms


class Member(KeyHolder):
    """Sends what it is told to, whether it may or not."""

    server: Server

    @classmethod
    async def joined(cls, server: Server, handle: str) -> Member:
        member = cls()
        member.server = server
        await member.join(server, handle)
        return member

    async def call(self, method: str, url: str, content: object = None, *, status: int = 200) -> Any:
        """The answer's JSON; any other status is a failure of the test."""
        answer = await self.raw(method, url, content)
        assert answer.status_code == status, f"{method} {url}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    async def raw(self, method: str, url: str, content: object = None) -> httpx.Response:
        body = b"" if content is None else msgspec.json.encode(content)
        return await self.server.send_signed(self, method, url, body)

    async def makes(self, name: str = "news", policy: str = "open", **values: object) -> UUID:
        """A channel without a key."""
        body = {"channel_name": name, "policy": policy, **values}
        return UUID((await self.call("POST", "/v1/channels", body, status=201))["channel_id"])

    def signs(self, channel: UUID, *members: Listed, after: Roster | None = None, **other: object) -> Roster:
        """The roster after one, or the first."""
        values: dict[str, Any] = {
            "channel_id": channel,
            "owner_nhi": self.handle,
            "channel_name": "news",
            "policy": "allowlist",
            "members": members,
            "issued_at": now_ms(),
            **({} if after is None else {"version": after.version + 1, "prev_roster_hash": after.hash}),
            **other,
        }
        return sign_roster(values.pop("pair", self.pair), **values)

    async def makes_signed(self, *members: Listed, **other: object) -> Roster:
        """A channel that has a roster from the beginning."""
        roster = self.signs(uuid4(), *members, **other)
        await self.makes(roster.channel_name, roster.policy, roster=msgspec.to_builtins(roster_document(roster)))
        return roster

    async def puts(self, roster: Roster) -> httpx.Response:
        return await self.raw("PUT", f"/v1/channels/{roster.channel_id}/roster", roster_document(roster))

    async def keyed(self, name: str = "news", policy: str = "open", **values: object) -> tuple[UUID, EpochKey]:
        """A channel with its first key."""
        channel = await self.makes(name, policy, **values)
        return channel, await self.rekeys(channel, 1)

    async def rekeys(self, channel: UUID, epoch: int) -> EpochKey:
        key = EpochKey.generate()
        await self.call("POST", f"/v1/channels/{channel}/epoch", {"epoch": epoch, "epoch_key_id": key.key_id})
        return key

    async def subscribes(self, channel: UUID, *, status: int = 201, **body: object) -> Any:
        return await self.call("POST", f"/v1/channels/{channel}/subscribe", body or None, status=status)

    async def shows(self, channel: UUID, *, status: int = 200) -> Any:
        return await self.call("GET", f"/v1/channels/{channel}", status=status)

    async def allows(self, channel: UUID, agent: str, **rights: bool) -> Any:
        return await self.call("PUT", f"/v1/channels/{channel}/allowlist/{agent}", rights)

    def seals(self, channel: UUID, key: EpochKey, body: bytes = b"hello", **other: object) -> Envelope:
        values: dict[str, Any] = {"message_id": uuid4(), "created_at": now_ms(), "sender": self.handle, **other}
        sender = values.pop("sender")
        return seal(Letter(channel_id=channel, key=key, body=body, **values), sender, self.pair)

    async def publishes(self, envelope: Envelope, channel: UUID | None = None) -> httpx.Response:
        """By default in the channel that it was sealed for."""
        url = f"/v1/channels/{channel or envelope.header.channel_id}/publish"
        return await self.server.send_signed(self, "POST", url, json_form.encode(envelope))

    async def publishes_bytes(self, envelope: Envelope) -> httpx.Response:
        url = f"/v1/channels/{envelope.header.channel_id}/publish"
        headers = self.signed("POST", url, envelope.wire) | {"content-type": media_type.MEDIA_TYPE}
        return await self.server.request("POST", url, content=envelope.wire, headers=headers)

    async def says(self, channel: UUID, key: EpochKey, body: bytes = b"hello", **other: object) -> int:
        """Publish, and tell at which offset it is."""
        answer = await self.publishes(self.seals(channel, key, body, **other))
        assert answer.status_code == 201, answer.text
        return int(answer.json()["offset"])

    async def reads(self, channel: UUID, query: str = "", *, status: int = 200) -> Any:
        return await self.call("GET", f"/v1/channels/{channel}/messages{query}", status=status)

    async def hears(self, channel: UUID, key: EpochKey, query: str = "?max_messages=100") -> list[tuple[int, bytes]]:
        """What it reads, opened."""
        found = await self.reads(channel, query)
        envelopes = [(one["offset"], json_form.from_fields(one["envelope"])) for one in found["messages"]]
        return [(offset, unseal_post(envelope, channel, key)) for offset, envelope in envelopes]

    async def commits(self, channel: UUID, offset: int, *, status: int = 200) -> Any:
        return await self.call("POST", f"/v1/channels/{channel}/commit", {"offset": offset}, status=status)


def code(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of a refusal."""
    return answer.status_code, answer.json().get("code", "")
