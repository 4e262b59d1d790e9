"""What a relay still tried once rosters were signed: another channel, another owner, a former pair, a frozen view."""

from __future__ import annotations

import msgspec
import pytest

from angelia.channels.model import Policy
from angelia.client import Client
from angelia.client.channel_reading import Unopened
from angelia.envelope.refusals import NotAllowed
from angelia.envelope.rosters import UntrustedRoster
from angelia.envelope.sealing import ChannelKey, EpochKey
from liar import Liar, problem
from rostered import (
    CHANNEL,
    People,
    Sql,
    give,
    id_of,
    now,
    smuggle,
    through,
    told,
)

# Another channel, or another owner.


def test_another_channel_shown_for_the_one_that_is_read_makes_nobody_a_publisher(
    people: People, liar: Liar, sql: Sql
) -> None:
    alice, bob, mallory = people("alice"), people("bob"), people("mallory")
    channel = alice.creates(Policy.ALLOWLIST, bob)
    through(liar, bob)
    bob.subscribes(channel)
    channel_id = id_of(alice, channel)
    bait = mallory.client.create_channel(mallory.mailbox, "bait", Policy.OPEN)
    smuggle(sql, channel_id, mallory)
    key = EpochKey.generate()
    mallory.client.set_epoch(channel_id, 2, key.key_id)
    mallory.client.publish_envelope(channel_id, mallory.mailbox.channels.seal(channel_id, key, b"pay mallory", now()))
    give(mallory, bob, ChannelKey(channel_id, 2, key))
    swapped = msgspec.to_builtins(bait) | {"epoch": 2, "epoch_key_id": str(key.key_id)}
    liar.instead("GET", f"/v1/channels/{channel_id}", told(swapped))
    liar.lie("GET", CHANNEL + "/messages", lambda _, answer: answer.changed(roster_version=9))
    with pytest.raises(UntrustedRoster, match="asked for the channel"):
        bob.client.read_channel(bob.mailbox, channel_id, after_offset=0)
    liar.honest()
    [post] = bob.client.read_channel(bob.mailbox, channel_id, after_offset=0).messages
    assert isinstance(post, Unopened)
    assert isinstance(post.error, NotAllowed)


def test_a_stale_epoch_moves_no_message_into_another_channel(people: People, liar: Liar) -> None:
    alice, dave, mallory = people("alice"), people("dave"), people("mallory")
    channel = alice.creates(Policy.ALLOWLIST)
    alice.client.allow(alice.mailbox, channel, dave.name, may_publish=True)
    through(liar, dave)
    channel_id = id_of(dave, channel)
    bait = mallory.client.create_channel(mallory.mailbox, "bait", Policy.ALLOWLIST)
    mallory.client.allow(mallory.mailbox, bait.name, dave.name, may_publish=True)
    with Client(dave.url, identity=dave.mailbox) as other:
        swapped = told(msgspec.to_builtins(other.channel(bait.channel_id)))
    liar.instead("POST", f"/v1/channels/{channel_id}/publish", problem(409, "epoch_stale"))
    answers = iter([None])
    liar.lie("GET", f"/v1/channels/{channel_id}", lambda _, answer: next(answers, swapped) or answer)
    with pytest.raises(UntrustedRoster, match="asked for the channel"):
        dave.client.publish(dave.mailbox, channel, b"secret of alice's channel")
    assert mallory.client.find_channel(mallory.mailbox, bait.name).total_messages == 0
