"""Shared by the tests of rosters: channels, rosters, and agents that sign them, rightly or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TypeAlias
from uuid import UUID

import msgspec
import pytest

from angelia.envelope.rosters import Member, Roster, RosterDocument, UntrustedRoster, roster_document, sign_roster
from angelia.envelope.sealing import ChannelKey
from angelia.envelope.signing import SigningPair
from angelia.envelope.times import unix_ms
from angelia.mailbox.drafts import Draft, SendOptions
from channel_agents import Talker
from live_agents import Lossy
from lying_proxy import Answer, Liar

CHANNEL = r"/v1/channels/[0-9a-f-]{36}"
ROSTER = CHANNEL + "/roster"

People: TypeAlias = Callable[[str], Talker]
Sql: TypeAlias = Callable[..., None]
Members: TypeAlias = tuple[Talker, Talker, Talker, str]


def through(liar: Liar, talker: Talker) -> Talker:
    """From now on the agent's SDK uses the lying proxy."""
    talker.client.close()
    talker.client = Lossy(liar.url, identity=talker.mailbox)
    return talker


def id_of(talker: Talker, channel: str) -> UUID:
    return talker.client.channels.find(talker.mailbox, channel).channel_id


def smuggle(sql: Sql, channel_id: UUID, agent: Talker) -> None:
    """Inserts the two rows that make an agent a member: listed with all rights, and subscribed."""
    sql(
        "INSERT INTO channel_allowlist (channel_id, nhi, may_subscribe, may_publish, added_at)"
        " VALUES ($1, $2, true, true, now()) ON CONFLICT (channel_id, nhi) DO UPDATE SET may_publish = true",
        channel_id,
        agent.name,
    )
    sql(
        "INSERT INTO channel_subscriptions (subscription_id, channel_id, subscriber_nhi, created_at, updated_at)"
        " VALUES (gen_random_uuid(), $1, $2, now(), now()) ON CONFLICT DO NOTHING",
        channel_id,
        agent.name,
    )


def give(sender: Talker, recipient: Talker, key: ChannelKey) -> None:
    """Sends a channel's key as mail, as its publishers do."""
    known, _ = sender.client.keys.find(sender.mailbox, recipient.name)
    options: SendOptions = {"channel_id": key.channel_id, "control": True, "ttl_seconds": 3600}
    draft = Draft(recipient=known.bundle, body=key.encode(), options=options)
    assert sender.client.mail.send_sealed(sender.mailbox, sender.mailbox.outbox.seal_many([draft], now())) == [None]


def refuses(carol: Talker, channel: str, liar: Liar) -> None:
    """Asserts that the agent seals, sends and opens nothing."""
    liar.asked.clear()
    with pytest.raises(UntrustedRoster):
        carol.client.channels.publish(carol.mailbox, channel, b"secret")
    with pytest.raises(UntrustedRoster):
        carol.client.channels.share_key(carol.mailbox, channel)
    assert liar.count("POST", r"/v1/messages.*") == liar.count("POST", CHANNEL + "/publish") == 0


def pinned(talker: Talker, channel: str) -> Roster:
    roster = talker.mailbox.rosters.named(channel)
    assert roster is not None
    return roster


def after(before: Roster, signer: Talker, *members: Member) -> Roster:
    """Returns the next roster, signed by an agent that may not sign it."""
    return following(before, signer.mailbox.identity.pair, [*before.members, *members])


def following(before: Roster, pair: SigningPair, members: Iterable[Member], **other: object) -> Roster:
    """Returns the roster that follows another, signed by this pair."""
    values: dict[str, object] = {
        "channel_id": before.channel_id,
        "owner_nhi": before.owner_nhi,
        "channel_name": before.channel_name,
        "policy": before.policy,
        "issued_at": unix_ms(now()),
        "version": before.version + 1,
        "prev_roster_hash": before.hash,
        **other,
    }
    return sign_roster(pair, members=members, **values)  # type: ignore[arg-type]


def first_of(owner: Talker, channel_id: UUID, *members: Member) -> Roster:
    """Returns the first roster of a channel, signed by an agent that claims to own it."""
    return sign_roster(
        owner.mailbox.identity.pair,
        channel_id=channel_id,
        owner_nhi=owner.name,
        channel_name="news",
        policy="allowlist",
        members=members,
        issued_at=unix_ms(now()),
    )


def lists(liar: Liar, *lacking: Talker) -> None:
    """Makes the lying proxy say that these members lack the channel's key."""
    at = "2026-01-01T00:00:00Z"
    some = [{"subscriber_nhi": one.name, "status": "active", "key_epoch": 0, "created_at": at} for one in lacking]
    liar.instead("GET", CHANNEL + "/subscribers", told({"subscribers": some, "next": None}))


def shows(liar: Liar, roster: Roster) -> None:
    liar.lie("GET", ROSTER, lambda _, answer: said(answer, roster_document(roster)))
    liar.lie("GET", CHANNEL, lambda _, answer: answer.changed(roster_version=roster.version))


def said(answer: Answer, document: RosterDocument) -> Answer:
    return answer.saying(msgspec.to_builtins(document))


def told(document: object) -> Answer:
    return Answer(200, {"content-type": "application/json"}).saying(document)


def now() -> datetime:
    return datetime.now(UTC)
