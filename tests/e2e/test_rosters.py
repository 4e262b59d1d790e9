"""Channels on a relay that lies, and on a ledger that somebody has written into: the owner's signature decides."""

from __future__ import annotations

import threading

import msgspec
import pytest

from angelia.channels.model import ChannelPolicy
from angelia.client import Client
from angelia.client.channel_reading import Unopened
from angelia.client.channel_rosters import MissingRoster
from angelia.envelope.refusals import NotAllowed, UnknownKey
from angelia.envelope.rosters import (
    Member,
    UntrustedRoster,
    encode_roster,
    roster_document,
    sign_roster,
)
from angelia.envelope.sealing import ChannelKey, EpochKey
from angelia.envelope.times import unix_ms
from angelia.errors import NotFound
from angelia.mailbox.channels import ChannelMessage
from channel_agents import Talker, without_roster
from held_keys import held_keys
from lying_proxy import Answer, Asked, Liar, problem
from roster_steps import (
    CHANNEL,
    ROSTER,
    Members,
    People,
    Sql,
    after,
    give,
    id_of,
    now,
    pinned,
    refuses,
    said,
    shows,
    smuggle,
    through,
    told,
)

# Two rows in the ledger.


@pytest.mark.parametrize("policy", [ChannelPolicy.ALLOWLIST, ChannelPolicy.PRIVATE])
def test_whom_only_the_ledger_lists_is_sent_no_key(people: People, sql: Sql, policy: ChannelPolicy) -> None:
    alice, mallory = people("alice"), people("mallory")
    channel = alice.creates(policy)
    channel_id = id_of(alice, channel)
    mallory.mailbox.channels.join(channel_id, channel, now())  # she would take the key
    smuggle(sql, channel_id, mallory)
    if policy is ChannelPolicy.PRIVATE:
        sql("UPDATE channels SET policy = 'allowlist' WHERE channel_id = $1", channel_id)
        with pytest.raises(UntrustedRoster):
            alice.client.channels.publish(alice.mailbox, channel, b"secret")
        sql("UPDATE channels SET policy = 'private' WHERE channel_id = $1", channel_id)
    posted = alice.client.channels.publish(alice.mailbox, channel, b"secret")
    shared = alice.client.channels.share_key(alice.mailbox, channel)
    assert shared.sent == []
    if policy is ChannelPolicy.ALLOWLIST:
        assert isinstance(posted.unreached[mallory.name], NotAllowed)
    assert mallory.client.mail.receive(mallory.mailbox, most=50).controls == 0
    assert held_keys(mallory.mailbox, channel_id) == []


def test_a_member_who_publishes_gives_it_no_key_either(people: People, sql: Sql) -> None:
    alice, carol, mallory = people("alice"), people("carol"), people("mallory")
    channel = alice.creates(ChannelPolicy.ALLOWLIST)
    alice.client.channels.allow(alice.mailbox, channel, carol.name, may_publish=True)
    channel_id = id_of(alice, channel)
    mallory.mailbox.channels.join(channel_id, channel, now())
    smuggle(sql, channel_id, mallory)
    posted = carol.client.channels.publish(
        carol.mailbox, channel, b"secret"
    )  # under a key that she makes, and gives alice
    assert list(posted.unreached) == [mallory.name]
    assert mallory.client.mail.receive(mallory.mailbox, most=50).controls == 0


def test_a_post_of_who_is_no_publisher_is_not_opened(people: People, sql: Sql) -> None:
    """Bob may listen, so he has the key; the ledger calls him a publisher."""
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob, carol)
    for one in (bob, carol):
        one.subscribes(channel)
    alice.says(channel, "from alice")
    assert bob.hears(channel) == carol.hears(channel) == ["from alice"]
    channel_id = id_of(bob, channel)
    smuggle(sql, channel_id, bob)
    key = held_keys(bob.mailbox, channel_id)[0]
    secret = bob.mailbox.channels.key(channel_id, key.key_id, now())
    assert secret is not None
    bob.client.channels.publish_envelope(
        channel_id, bob.mailbox.channels.seal(channel_id, secret, b"pay mallory", now())
    )
    first, second = carol.page(channel, after=0)
    assert isinstance(first, ChannelMessage)
    assert isinstance(second, Unopened)
    assert isinstance(second.error, NotAllowed)


def test_a_key_of_who_is_no_publisher_is_not_taken(people: People, sql: Sql) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob, carol)
    alice.client.channels.allow(alice.mailbox, channel, carol.name, may_publish=True)
    for one in (bob, carol):
        one.subscribes(channel)
    alice.says(channel, "from alice")
    assert carol.hears(channel) == ["from alice"]
    channel_id = id_of(bob, channel)
    smuggle(sql, channel_id, bob)
    made = EpochKey.generate()
    bob.client.channels.set_epoch(channel_id, 2, made.key_id)  # the server lets him
    give(bob, carol, ChannelKey(channel_id, 2, made))
    assert carol.client.mail.receive(carol.mailbox).controls == 1
    assert carol.client.channels.take_keys(carol.mailbox) == 0
    assert carol.mailbox.channels.key(channel_id, made.key_id, now()) is None
    sql("UPDATE channels SET epoch_at = now() - interval '1 hour' WHERE channel_id = $1", channel_id)
    assert (
        carol.client.channels.publish(carol.mailbox, channel, b"for members").channel.epoch == 3
    )  # under a key of her own


def test_a_removed_member_gets_no_further_key_though_the_epoch_was_kept_open(people: People, sql: Sql) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob, carol)
    for one in (bob, carol):
        one.subscribes(channel)
    alice.says(channel, "for both")
    assert bob.hears(channel) == carol.hears(channel) == ["for both"]
    before = alice.client.channels.find(alice.mailbox, channel)
    alice.client.channels.disallow(alice.mailbox, channel, bob.name)
    smuggle(sql, before.channel_id, bob)  # the relay keeps him, and the epoch whose key he has
    sql("UPDATE channel_subscriptions SET status = 'active' WHERE channel_id = $1", before.channel_id)
    sql("UPDATE channels SET epoch_key_id = $2 WHERE channel_id = $1", before.channel_id, before.epoch_key_id)
    posted = alice.client.channels.publish(alice.mailbox, channel, b"without bob")
    assert posted.channel.epoch == 2
    assert list(posted.unreached) == [bob.name]
    assert bob.client.mail.receive(bob.mailbox, most=50).controls == 0
    last = bob.page(channel, after=1)[-1]
    assert isinstance(last, Unopened)
    assert isinstance(last.error, UnknownKey)
    assert carol.hears(channel, after=1) == ["without bob"]


# A relay that lies.


def test_an_older_roster_is_refused(members: Members, liar: Liar) -> None:
    """The relay shows the roster of a time when Bob was still on it."""
    alice, bob, carol, channel = members
    old = roster_document(pinned(carol, channel))
    alice.client.channels.disallow(alice.mailbox, channel, bob.name)
    assert carol.client.channels.publish(carol.mailbox, channel, b"without bob").unreached == {}
    liar.lie("GET", ROSTER, lambda _, answer: said(answer, old))
    liar.lie("GET", CHANNEL, lambda _, answer: answer.changed(roster_version=old.version))
    refuses(carol, channel, liar)


def test_a_version_that_goes_back_is_refused_also_where_no_roster_is_shown(members: Members, liar: Liar) -> None:
    _, _, carol, channel = members
    liar.lie("GET", CHANNEL, lambda _, answer: answer.changed(roster_version=0))
    assert (
        carol.client.channels.publish(carol.mailbox, channel, b"x").published.offset == 2
    )  # it still is what was pinned
    liar.instead("GET", ROSTER, problem(404, "not_found"))
    with pytest.raises(NotFound):
        carol.client.channels.publish(carol.mailbox, channel, b"x")


def test_a_forged_roster_is_refused(members: Members, people: People, liar: Liar) -> None:
    _, _, carol, channel = members
    mallory = people("mallory")
    forged = after(pinned(carol, channel), mallory, Member(mallory.name, may_publish=True, may_subscribe=True))
    shows(liar, forged)
    refuses(carol, channel, liar)
    document = roster_document(pinned(carol, channel))  # alice's own signatures, and one more member
    theirs = roster_document(forged)
    grown = msgspec.structs.replace(
        document, version=theirs.version, prev_roster_hash=theirs.prev_roster_hash, members=theirs.members
    )
    liar.lie("GET", ROSTER, lambda _, answer: said(answer, grown))
    refuses(carol, channel, liar)


def test_the_roster_of_another_channel_is_refused(members: Members, liar: Liar) -> None:
    """All of it is alice's word, but for another of her channels."""
    alice, _, carol, channel = members
    alice.client.channels.create(alice.mailbox, "open", ChannelPolicy.OPEN)
    other = pinned(alice, f"{alice.name}/open")
    liar.lie("GET", ROSTER, lambda _, answer: said(answer, roster_document(other)))
    liar.lie("GET", CHANNEL, lambda _, answer: answer.changed(roster_version=9))
    refuses(carol, channel, liar)


@pytest.mark.parametrize("policy", ["open", "authz_required"])
def test_a_relay_cannot_change_the_policy(members: Members, liar: Liar, policy: str) -> None:
    """Neither for who has pinned the roster, nor for who meets the channel now."""
    _, bob, carol, channel = members
    liar.lie("GET", CHANNEL, lambda _, answer: answer.changed(policy=policy))
    refuses(carol, channel, liar)
    with bob.mailbox.database.transaction() as tx:
        tx.execute("DELETE FROM channel_rosters")
    refuses(through(liar, bob), channel, liar)


def test_without_a_roster_nothing_is_sealed_at_first_contact_either(
    members: Members, people: People, liar: Liar
) -> None:
    """A relay that hides the roster, and says that everybody may read, gets nothing."""
    alice, _, _, channel = members
    dave = people("dave")
    alice.client.channels.allow(alice.mailbox, channel, dave.name, may_publish=True)
    through(liar, dave)
    liar.lie("GET", CHANNEL, lambda _, answer: answer.changed(roster_version=0, policy="authz_required"))
    liar.asked.clear()
    with pytest.raises(MissingRoster):
        dave.client.channels.publish(dave.mailbox, channel, b"secret")
    assert liar.count("POST") == 0


def test_a_name_stands_for_the_channel_that_the_owner_gave_it_to(members: Members, liar: Liar) -> None:
    alice, _, carol, channel = members
    open_ = alice.client.channels.create(alice.mailbox, "open", ChannelPolicy.OPEN)

    def instead_of_news(asked: Asked, answer: Answer) -> Answer:
        return answer.saying({"channels": [msgspec.to_builtins(open_)], "next": None})

    liar.lie("GET", "/v1/channels", instead_of_news)
    refuses(carol, channel, liar)
    liar.lie("GET", CHANNEL, lambda _, answer: answer.changed(channel_name="news"))
    refuses(carol, channel, liar)


def test_a_channel_that_was_made_again_is_followed_and_the_deleted_one_is_not(members: Members, liar: Liar) -> None:
    alice, _, carol, channel = members
    old, shown = pinned(carol, channel), carol.client.channels.find(carol.mailbox, channel)
    alice.client.channels.delete(alice.mailbox, old.channel_id)
    alice.client.channels.create(alice.mailbox, "news", ChannelPolicy.ALLOWLIST, allow=[carol.name])
    carol.subscribes(channel)
    assert pinned(carol, channel).channel_id != old.channel_id
    liar.instead("GET", "/v1/channels", told({"channels": [msgspec.to_builtins(shown)], "next": None}))
    liar.instead("GET", CHANNEL, told(msgspec.to_builtins(shown)))
    liar.instead("GET", ROSTER, told(msgspec.to_builtins(roster_document(old))))
    refuses(carol, channel, liar)


def test_a_lie_about_one_channel_takes_no_key_away(members: Members, liar: Liar) -> None:
    alice, _, carol, channel = members
    alice.client.channels.disallow(alice.mailbox, channel, members[1].name)
    alice.says(channel, "under the next key")
    liar.lie("GET", CHANNEL, lambda _, answer: answer.changed(policy="open"))
    assert carol.client.mail.receive(carol.mailbox).controls == 1
    assert carol.client.channels.take_keys(carol.mailbox) == 0
    liar.honest()
    assert carol.client.channels.take_keys(carol.mailbox) == 1
    assert carol.hears(channel)[-1] == "under the next key"


def test_an_owner_is_not_lied_to_either(people: People, liar: Liar) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    first = roster_document(pinned(alice, channel))
    alice.client.channels.disallow(alice.mailbox, channel, bob.name)
    through(liar, alice)
    liar.lie("GET", ROSTER, lambda _, answer: said(answer, first))
    liar.lie("GET", CHANNEL, lambda _, answer: answer.changed(roster_version=1))
    refuses(alice, channel, liar)
    liar.honest()
    mallory = people("mallory")
    shows(liar, after(pinned(alice, channel), mallory, Member(mallory.name, may_publish=True, may_subscribe=True)))
    refuses(alice, channel, liar)
    with pytest.raises(UntrustedRoster):  # nor is anything signed on top of it
        alice.client.channels.allow(alice.mailbox, channel, bob.name)
    assert liar.count("PUT") == 0


def test_publishing_asks_for_no_roster_as_long_as_it_is_the_same(members: Members, liar: Liar) -> None:
    alice, _, carol, channel = members
    carol.says(channel, "one")
    liar.asked.clear()
    carol.says(channel, "two")
    assert [(one.method, one.path.rpartition("/")[2]) for one in liar.asked if "/publish" not in one.path] == [
        ("GET", "channels"),
        ("GET", str(id_of(alice, channel))),
    ]
    carol.hears(channel)
    assert liar.count("GET", ROSTER) == 0
    alice.client.channels.update(alice.mailbox, channel, policy=ChannelPolicy.PRIVATE)
    alice.client.channels.update(alice.mailbox, channel, policy=ChannelPolicy.ALLOWLIST)
    carol.subscribes(channel)
    carol.says(channel, "three")
    assert liar.count("GET", ROSTER) == 1


# The owner.


def test_an_owner_that_is_away_stops_nobody_on_the_roster(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    alice.client.channels.allow(alice.mailbox, channel, carol.name, may_publish=True)
    alice.close()
    carol.says(channel, "before bob came")
    bob.subscribes(channel)
    carol.client.channels.share_key(carol.mailbox, channel)
    carol.says(channel, "from carol")
    assert bob.hears(channel) == ["from carol"]
    bob.client.channels.unsubscribe(bob.mailbox, channel)
    alice.reopen()


def test_changes_at_once_are_made_one_on_top_of_the_other(people: People) -> None:
    alice, others = people("alice"), [people(name) for name in ("bob", "carol", "dave")]
    channel = alice.creates(ChannelPolicy.ALLOWLIST)

    def allow(other: Talker) -> None:
        with Client(alice.url, identity=alice.mailbox) as client:
            client.channels.allow(alice.mailbox, channel, other.name)

    threads = [threading.Thread(target=allow, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    roster = pinned(alice, channel)
    assert ([one.nhi for one in roster.members], roster.version) == (sorted(one.name for one in others), 4)


def test_an_owner_who_rotates_is_followed(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob, carol)
    bob.subscribes(channel)
    alice.client.keys.rotate(alice.mailbox, signer=True)
    carol.subscribes(channel)  # meets her now, and the roster that her next pair signed
    assert pinned(carol, channel).version == 2
    alice.says(channel, "hello")
    assert bob.hears(channel) == carol.hears(channel) == ["hello"]
    assert pinned(bob, channel).version == 2


def test_after_an_emergency_the_rosters_are_signed_anew_and_those_of_the_stolen_pair_are_refused(
    people: People, liar: Liar
) -> None:
    alice, bob, mallory = people("alice"), people("bob"), people("mallory")
    channel = alice.creates(ChannelPolicy.ALLOWLIST)
    alice.client.channels.allow(alice.mailbox, channel, bob.name, may_publish=True)
    bob.subscribes(channel)
    stolen = alice.mailbox.identity.pair
    true = pinned(alice, channel)
    entry = Member(mallory.name, may_publish=True, may_subscribe=True)
    signed = sign_roster(
        stolen,
        channel_id=true.channel_id,
        owner_nhi=alice.name,
        channel_name="news",
        policy="allowlist",
        members=[*true.members, entry],
        issued_at=unix_ms(now()),
        version=true.version + 1,
        prev_roster_hash=true.hash,
    )
    with Client(alice.url, identity=alice.mailbox) as thief:
        thief.channels.put_roster(signed)
    alice.client.keys.emergency_rotate(alice.mailbox, why="stolen")
    mended = pinned(alice, channel)
    assert (mended.version, [one.nhi for one in mended.members]) == (signed.version + 1, [bob.name])
    bob.mailbox.pinned_keys.drop_bundle(alice.name)  # an hour later
    assert bob.client.channels.publish(bob.mailbox, channel, b"without mallory").unreached == {}
    assert pinned(bob, channel) == mended
    through(liar, bob)
    late = sign_roster(
        stolen,
        channel_id=true.channel_id,
        owner_nhi=alice.name,
        channel_name="news",
        policy="allowlist",
        members=[*true.members, entry],
        issued_at=unix_ms(now()),
        version=mended.version + 1,
        prev_roster_hash=mended.hash,
    )
    shows(liar, late)
    refuses(bob, channel, liar)


def test_a_channel_of_the_time_before_rosters_waits_for_its_owners_signature(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    made = alice.client.run(without_roster(ChannelPolicy.ALLOWLIST, bob.name, carol.name))
    bob.subscribes(made.name)
    with pytest.raises(MissingRoster) as refused:
        alice.client.channels.publish(alice.mailbox, made.name, b"x")
    assert refused.value.hint == "look at its list and sign it: angelia channel sign news"
    proposal = alice.client.channels.propose_roster(alice.mailbox, "news")
    assert (proposal.policy, proposal.by_server) == (ChannelPolicy.ALLOWLIST, True)
    listed = [one for one in proposal.members if one.nhi != carol.name]  # whom alice never listed
    signed = alice.client.channels.sign_roster(alice.mailbox, "news", ChannelPolicy.ALLOWLIST, listed)
    assert signed.roster_version == 1
    alice.says(made.name, "signed")
    assert bob.hears(made.name) == ["signed"]
    with pytest.raises(NotFound):
        carol.subscribes(made.name)


def test_an_owner_whose_mailbox_was_lost_signs_what_it_has_looked_at(people: People) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    with alice.mailbox.database.transaction() as tx:
        tx.execute("DELETE FROM channel_rosters")
    alice.client.channels.publish(alice.mailbox, channel, b"her present pair signed it")
    with alice.mailbox.database.transaction() as tx:
        tx.execute("DELETE FROM channel_rosters")
    alice.client.keys.rotate(alice.mailbox, signer=True)
    with pytest.raises(UntrustedRoster) as refused:
        alice.client.channels.publish(alice.mailbox, channel, b"x")
    assert "angelia channel sign news" in refused.value.hint
    proposal = alice.client.channels.propose_roster(alice.mailbox, channel)
    alice.client.channels.sign_roster(alice.mailbox, channel, proposal.policy, proposal.members)
    bob.subscribes(channel)
    alice.says(channel, "again")
    assert bob.hears(channel) == ["again"]


def test_after_a_server_was_put_back_its_rosters_are_signed_past_what_members_have_seen(
    people: People, sql: Sql
) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    first = pinned(alice, channel)
    bob.subscribes(channel)
    alice.client.channels.allow(alice.mailbox, channel, carol.name)
    alice.client.channels.disallow(alice.mailbox, channel, carol.name)
    bob.client.channels.find(bob.mailbox, channel)
    values = (first.channel_id, first.hash, encode_roster(first))
    sql("UPDATE channel_rosters SET version = 1, roster_hash = $2, roster = $3 WHERE channel_id = $1", *values)
    sql("UPDATE channels SET roster_version = 1 WHERE channel_id = $1", first.channel_id)
    for one in (alice, bob):
        with pytest.raises(UntrustedRoster):
            one.client.channels.find(one.mailbox, channel)
    proposal = alice.client.channels.propose_roster(alice.mailbox, channel)
    assert not proposal.by_server
    alice.client.channels.sign_roster(alice.mailbox, channel, proposal.policy, proposal.members)
    alice.says(channel, "again")
    assert bob.hears(channel) == ["again"]
