"""Agents of a real server that publish and read in its channels."""

from __future__ import annotations

from pathlib import Path

from angelia.channels import api
from angelia.channels.model import Channel, ChannelPolicy
from angelia.client.channel_reading import Unopened
from angelia.client.exchange import Exchange
from angelia.client.operation_requests import ask
from angelia.mailbox.channels import ChannelMessage
from live_agents import Person
from server_process import ServerProcess


def without_roster(policy: ChannelPolicy, *allowed: str) -> Exchange[Channel]:
    """Makes a channel `news` as clients did before there were rosters."""
    return ask(api.CREATE, body=api.NewChannel(channel_name="news", policy=policy, allowlist_nhis=list(allowed)))


class Talker(Person):
    """A registered agent with keys, which publishes and subscribes."""

    def __init__(self, server: ServerProcess, home: Path, name: str) -> None:
        super().__init__(server.start_url, home, name)
        self.register()
        self.client.keys.publish(self.mailbox)

    def creates(self, policy: ChannelPolicy, *allowed: Talker) -> str:
        channel = self.client.channels.create(self.mailbox, "news", policy, allow=[one.name for one in allowed])
        return channel.name

    def subscribes(self, channel: str) -> None:
        self.client.channels.subscribe(self.mailbox, channel)

    def says(self, channel: str, text: str) -> None:
        posted = self.client.channels.publish(self.mailbox, channel, text.encode())
        assert posted.unreached == {}

    def page(self, channel: str, after: int | None = None) -> list[ChannelMessage | Unopened]:
        found = self.client.channels.find(self.mailbox, channel)
        return self.client.channels.read(self.mailbox, found.channel_id, after_offset=after, max_messages=100).messages

    def hears(self, channel: str, after: int | None = None) -> list[str]:
        page = self.page(channel, after)
        assert all(isinstance(one, ChannelMessage) for one in page), page
        return [one.body.decode() for one in page if isinstance(one, ChannelMessage)]

    def commits(self, channel: str, offset: int) -> None:
        self.client.channels.commit(self.client.channels.find(self.mailbox, channel).channel_id, offset)
