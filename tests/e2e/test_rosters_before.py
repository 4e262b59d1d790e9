"""Channels that the build before made: they open, and nothing is sealed in them before their owner has signed."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from angelia.channels.model import ChannelPolicy
from angelia.client import Client
from angelia.client.channel_rosters import MissingRoster
from angelia.mailbox import identity
from angelia.mailbox.channels import ChannelMessage
from angelia.mailbox.mailbox import Mailbox
from server_process import ServerProcess

BEFORE = Path(__file__).parents[1] / "fixtures/before"


@pytest.fixture(scope="module")
def place(directory: Path) -> Path:
    """Copies of what the build before wrote."""
    place = directory / f"before-{secrets.token_hex(4)}"
    place.mkdir(mode=0o755)
    owners = "--same-owner" if os.geteuid() == 0 else "--no-same-owner"
    for name in ("data.tar.xz", "home.tar.xz"):
        subprocess.run(["tar", "-xJpf", BEFORE / name, owners, "-C", place], check=True)
    return place


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(place / "data")
    server.start()
    yield server
    server.stop()


def opened(place: Path, name: str) -> Mailbox:
    return Mailbox(place / "home", identity.load(place / "home", name, lambda: ""), datetime.now(UTC))


def test_an_owner_signs_the_channels_of_the_build_before_and_they_go_on(place: Path, server: ServerProcess) -> None:
    with (
        opened(place, "alice") as alice,
        opened(place, "bob") as bob,
        Client(server.start_url, identity=alice) as owner,
        Client(server.start_url, identity=bob) as member,
    ):
        owner.keys.publish(alice)
        member.keys.publish(bob)
        before = owner.channels.find(alice, "news")
        assert (before.policy, before.roster_version) == (ChannelPolicy.ALLOWLIST, 0)
        for channel in ("news", "team"):
            with pytest.raises(MissingRoster, match="alice has not signed yet who is in"):
                owner.channels.publish(alice, channel, b"x")
            proposal = owner.channels.propose_roster(alice, channel)
            owner.channels.sign_roster(alice, channel, proposal.policy, proposal.members)
        owner.channels.publish(alice, "team", b"for alice alone")
        posted = owner.channels.publish(alice, "news", b"signed")
        # The build before gave its key to whomever the server listed.
        assert (posted.channel.epoch, posted.unreached) == (before.epoch + 1, {})
        page = member.channels.read(bob, before.channel_id, after_offset=posted.published.offset - 1)
        (heard,) = page.messages
        assert isinstance(heard, ChannelMessage)
        assert heard.body == b"signed"
        roster = member.channels.roster(bob, "alice/news")
        assert roster is not None
        assert [one.nhi for one in roster.members] == ["bob"]
