"""Which keys of a channel its publishers seal under: by the roster that the owner signed, on nobody else's word."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace
from uuid import UUID, uuid4

import msgspec
import pytest

from angelia.channels.model import ChannelPolicy
from angelia.client import channel_key_mail, own_key_renewal
from angelia.client.channel_membership import forget_channel
from angelia.client.channel_reading import Unopened
from angelia.envelope.refusals import NotAllowed
from angelia.envelope.rosters import Member, Roster, encode_roster, roster_document
from angelia.envelope.sealing import ChannelKey, Edition, EpochKey
from angelia.errors import AngeliaError
from angelia.mailbox.channels import ChannelMessage, EpochWentBack
from angelia.mailbox.drafts import Draft, SendOptions
from channel_agents import Talker
from held_keys import held_keys
from lying_proxy import Liar
from roster_steps import (
    CHANNEL,
    ROSTER,
    Members,
    People,
    Sql,
    following,
    give,
    lists,
    now,
    pinned,
    refuses,
    said,
    shows,
    through,
    told,
)


def key_of(who: Talker, channel_id: UUID) -> EpochKey:
    """The one key of a channel that an agent has."""
    [held] = held_keys(who.mailbox, channel_id)
    key = who.mailbox.channels.key(channel_id, held.key_id, now())
    assert key is not None
    return key


def takes(who: Talker) -> int:
    """Fetch the mail, and take the channels' keys from it."""
    who.client.mail.receive(who.mailbox, most=200)
    return who.client.channels.take_keys(who.mailbox)


def sealed_under(who: Talker, channel: str) -> UUID:
    return who.client.channels.publish(who.mailbox, channel, b"secret").envelope.header.key_id


# What a reader says of a key.


def test_a_subscriber_of_an_open_channel_who_names_a_far_version_locks_nobody_out(people: People) -> None:
    alice, bob, mallory = people("alice"), people("bob"), people("mallory")
    channel = alice.creates(ChannelPolicy.OPEN)
    for one in (bob, mallory):
        one.subscribes(channel)
    alice.says(channel, "one")
    assert bob.hears(channel) == mallory.hears(channel) == ["one"]
    before = alice.client.channels.find(alice.mailbox, channel)
    far = ChannelKey(before.channel_id, before.epoch, key_of(mallory, before.channel_id), far_edition(alice, channel))
    for one in (bob, alice):
        give(mallory, one, far)
        takes(one)
        one.says(channel, "still here")
    assert alice.client.channels.find(alice.mailbox, channel).epoch == before.epoch


def test_a_removed_reader_who_names_a_far_version_locks_nobody_out(people: People) -> None:
    alice, bob, mallory = people("alice"), people("bob"), people("mallory")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, mallory)
    alice.client.channels.allow(alice.mailbox, channel, bob.name, may_publish=True)
    for one in (bob, mallory):
        one.subscribes(channel)
    alice.says(channel, "one")
    assert bob.hears(channel) == mallory.hears(channel) == ["one"]
    before = alice.client.channels.find(alice.mailbox, channel)
    alice.client.channels.disallow(alice.mailbox, channel, mallory.name)
    alice.says(channel, "two")
    assert bob.hears(channel, 1) == ["two"]
    give(
        mallory,
        bob,
        ChannelKey(before.channel_id, before.epoch, key_of(mallory, before.channel_id), far_edition(alice, channel)),
    )
    takes(bob)
    bob.says(channel, "still here")
    alice.says(channel, "three")
    bob.says(channel, "and here")


def _with_publishers(owner: Talker, reader: Talker, *publishers: Talker) -> str:
    """A channel with a message, which the reader and the first of the publishers have subscribed to."""
    channel = owner.creates(ChannelPolicy.ALLOWLIST, reader)
    for one in publishers:
        owner.client.channels.allow(owner.mailbox, channel, one.name, may_publish=True)
    for one in (reader, publishers[0]):
        one.subscribes(channel)
    owner.says(channel, "one")
    return channel


def test_a_removed_members_word_on_its_old_key_is_believed_by_nobody(people: People, sql: Sql) -> None:
    """Bob hears of the removal before the key reaches him; the ledger calls it the present one again."""
    alice, bob, carol, mallory = (people(name) for name in ("alice", "bob", "carol", "mallory"))
    channel = _with_publishers(alice, mallory, bob, carol)
    assert mallory.hears(channel) == ["one"]
    before = alice.client.channels.find(alice.mailbox, channel)
    carol.client.channels.find(carol.mailbox, channel)
    alice.client.channels.disallow(alice.mailbox, channel, mallory.name)
    for one in (bob, carol):
        one.client.channels.find(one.mailbox, channel)
    key = key_of(mallory, before.channel_id)
    give(mallory, bob, ChannelKey(before.channel_id, before.epoch, key, pinned(bob, channel).edition))
    takes(bob)
    carol.subscribes(channel)
    sql("UPDATE channels SET epoch_key_id = $2 WHERE channel_id = $1", before.channel_id, key.key_id)
    assert sealed_under(bob, channel) != key.key_id
    takes(carol)
    assert key.key_id not in [one.key_id for one in held_keys(carol.mailbox, before.channel_id)]
    assert sealed_under(carol, channel) != key.key_id


def test_a_hundred_keys_that_cannot_be_judged_keep_none_of_another_channel(people: People) -> None:
    """The owner of the one channel has revoked the pair that signed its roster, and signs it no more."""
    alice, bob, mallory = people("alice"), people("bob"), people("mallory")
    bait = mallory.client.channels.create(mallory.mailbox, "bait", ChannelPolicy.OPEN)
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    for one in (bait.name, channel):
        bob.subscribes(one)
    mallory.client.run(own_key_renewal.emergency_rotate_keys(mallory.mailbox, why="stolen"))
    bob.mailbox.pinned_keys.drop_bundle(mallory.name)  # an hour later
    known, _ = mallory.client.keys.find(mallory.mailbox, bob.name)
    body = ChannelKey(bait.channel_id, 1, EpochKey.generate(), pinned(mallory, bait.name).edition).encode()
    options: SendOptions = {"channel_id": bait.channel_id, "control": True, "ttl_seconds": 3600}
    draft = Draft(recipient=known.bundle, body=body, options=options)
    assert not any(
        mallory.client.mail.send_sealed(mallory.mailbox, mallory.mailbox.outbox.seal_many([draft] * 100, now()))
    )
    assert takes(bob) == 0
    alice.says(channel, "one")
    assert bob.hears(channel) == ["one"]


# What a relay says of a key.


def test_an_epoch_that_a_relay_made_up_is_cured_by_forgetting_and_no_removal_is_taken_back(
    people: People, liar: Liar
) -> None:
    alice, bob, mallory = people("alice"), people("bob"), people("mallory")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob, mallory)
    with_mallory = pinned(alice, channel)
    alice.client.channels.disallow(alice.mailbox, channel, mallory.name)
    removed = pinned(alice, channel)
    shown = msgspec.to_builtins(alice.client.channels.show(removed.channel_id))
    through(liar, alice)
    liar.lie("GET", CHANNEL, lambda _, answer: answer.changed(epoch=500_000, epoch_key_id=None))
    liar.instead("POST", CHANNEL + "/epoch", told(shown))
    with pytest.raises(AngeliaError):
        alice.client.channels.publish(alice.mailbox, channel, b"x")
    liar.honest()
    with pytest.raises(EpochWentBack) as refused:
        alice.client.channels.publish(alice.mailbox, channel, b"x")
    assert "angelia channel forget" in refused.value.hint
    forget_channel(alice.mailbox, channel)
    shows(liar, with_mallory)
    lists(liar, mallory)
    refuses(alice, channel, liar)
    liar.honest()
    alice.says(channel, "again")
    assert pinned(alice, channel) == removed


def test_one_lie_about_the_present_key_costs_no_key(people: People, liar: Liar) -> None:
    alice, bob, eve = people("alice"), people("bob"), people("eve")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob, eve)
    through(liar, bob)
    bob.subscribes(channel)
    alice.says(channel, "one")
    liar.lie("GET", CHANNEL, lambda _, answer: answer.changed(epoch_key_id=str(uuid4())))
    assert takes(bob) == 0
    liar.honest()
    alice.client.channels.disallow(alice.mailbox, channel, eve.name)  # nobody sends the key again
    alice.says(channel, "two")
    assert bob.hears(channel, 0) == ["one", "two"]


# Members that came, went or were away.


def test_a_member_who_meets_the_channel_after_a_removal_seals_under_no_key_of_before(
    people: People, liar: Liar, sql: Sql
) -> None:
    """The relay keeps the removal from bob, who gives dave the key of before; the ledger calls it the present one."""
    alice, bob, dave, mallory = (people(name) for name in ("alice", "bob", "dave", "mallory"))
    channel = _with_publishers(alice, mallory, bob, dave)
    assert bob.hears(channel) == mallory.hears(channel) == ["one"]
    through(liar, bob)
    before, old = alice.client.channels.find(alice.mailbox, channel), pinned(bob, channel)
    alice.client.channels.disallow(alice.mailbox, channel, mallory.name)
    sql("UPDATE channels SET epoch_key_id = $2 WHERE channel_id = $1", before.channel_id, before.epoch_key_id)
    dave.subscribes(channel)
    shows(liar, old)
    assert sealed_under(bob, channel) == before.epoch_key_id
    assert takes(dave) == 1
    assert sealed_under(dave, channel) != before.epoch_key_id


def test_rotating_the_pair_twice_locks_no_publisher_of_an_open_channel_out(people: People) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.OPEN)
    bob.subscribes(channel)
    alice.says(channel, "one")
    assert bob.hears(channel) == ["one"]
    for _ in range(2):
        alice.client.keys.rotate(alice.mailbox, signer=True)
    bob.mailbox.pinned_keys.drop_bundle(alice.name)  # an hour later
    bob.says(channel, "still here")
    assert pinned(bob, channel).version == 3


def test_after_an_emergency_the_next_message_of_an_owner_or_a_publisher_has_another_key(people: People) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.ALLOWLIST)
    alice.client.channels.allow(alice.mailbox, channel, bob.name, may_publish=True)
    bob.subscribes(channel)
    alice.says(channel, "one")
    assert bob.hears(channel) == ["one"]
    stolen = sealed_under(bob, channel)
    alice.client.keys.emergency_rotate(alice.mailbox, why="stolen")
    bob.mailbox.pinned_keys.drop_bundle(alice.name)  # an hour later
    by_alice = sealed_under(alice, channel)
    assert stolen != by_alice == sealed_under(bob, channel)
    bob.client.keys.emergency_rotate(bob.mailbox, why="stolen")
    alice.mailbox.pinned_keys.drop_bundle(bob.name)  # an hour later
    by_bob = sealed_under(bob, channel)
    assert by_alice != by_bob == sealed_under(alice, channel)


def test_a_member_who_was_away_reads_what_was_published_under_the_key_of_a_publisher_of_then(people: People) -> None:
    alice, carol, dave = people("alice"), people("carol"), people("dave")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, carol)
    carol.subscribes(channel)
    alice.says(channel, "first")
    assert carol.hears(channel) == ["first"]
    alice.client.channels.allow(alice.mailbox, channel, dave.name, may_publish=True)
    dave.says(channel, "under a key of dave's")
    alice.says(channel, "under the same")
    alice.client.channels.disallow(alice.mailbox, channel, dave.name)
    alice.says(channel, "later")
    of_dave, of_alice, later = carol.page(channel, after=1)
    assert isinstance(of_dave, Unopened)
    assert isinstance(of_dave.error, NotAllowed)
    assert [one.body for one in (of_alice, later) if isinstance(one, ChannelMessage)] == [b"under the same", b"later"]


def test_a_publisher_with_a_frozen_view_gives_a_removed_member_no_key_of_after(members: Members, liar: Liar) -> None:
    alice, bob, carol, channel = members
    old = pinned(carol, channel)
    alice.client.channels.disallow(alice.mailbox, channel, bob.name)
    alice.says(channel, "without bob")
    liar.lie("GET", ROSTER, lambda _, answer: said(answer, roster_document(old)))
    liar.lie("GET", CHANNEL, lambda _, answer: answer.changed(roster_version=old.version, without_key=1))
    lists(liar, bob)
    assert carol.client.mail.receive(carol.mailbox).controls == 1
    assert carol.client.channels.take_keys(carol.mailbox) == 0
    refuses(carol, channel, liar)
    assert carol.hears(channel)[-1] == "without bob"  # what it opens is hers to read
    assert bob.client.mail.receive(bob.mailbox, most=50).controls == 1  # of his time
    liar.honest()
    carol.says(channel, "and carol has heard")


def test_nothing_is_sealed_under_a_key_whose_maker_had_not_heard_of_the_removal(members: Members, liar: Liar) -> None:
    alice, bob, carol, channel = members
    old = pinned(carol, channel)
    alice.client.channels.disallow(alice.mailbox, channel, bob.name)
    liar.lie("GET", ROSTER, lambda _, answer: said(answer, roster_document(old)))
    liar.lie("GET", CHANNEL, lambda _, answer: answer.changed(roster_version=old.version, without_key=1))
    of_carol = carol.client.channels.publish(carol.mailbox, channel, b"bob may have it").channel
    posted = alice.client.channels.publish(alice.mailbox, channel, b"without bob")
    assert posted.channel.epoch == of_carol.epoch + 1


def test_a_key_that_went_by_while_a_member_was_added_and_removed_seals_nothing(people: People, sql: Sql) -> None:
    alice, carol, mallory = people("alice"), people("carol"), people("mallory")
    channel = alice.creates(ChannelPolicy.ALLOWLIST)
    alice.client.channels.allow(alice.mailbox, channel, carol.name, may_publish=True)
    carol.subscribes(channel)
    alice.says(channel, "one")
    assert carol.hears(channel) == ["one"]
    alice.client.channels.allow(alice.mailbox, channel, mallory.name)
    mallory.subscribes(channel)
    alice.says(channel, "two")
    before = alice.client.channels.find(alice.mailbox, channel)
    alice.client.channels.disallow(alice.mailbox, channel, mallory.name)
    sql("UPDATE channels SET epoch_key_id = $2 WHERE channel_id = $1", before.channel_id, before.epoch_key_id)
    posted = carol.client.channels.publish(carol.mailbox, channel, b"without mallory")
    assert posted.channel.epoch == before.epoch + 1


def test_an_owner_that_was_led_to_a_far_version_goes_on_with_a_new_pair(people: People, liar: Liar) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    true, stolen = pinned(alice, channel), alice.mailbox.identity.pair
    bob.subscribes(channel)
    through(liar, alice)
    shows(liar, following(true, stolen, true.members, version=10**9, prev_roster_hash=b"x" * 32))
    alice.client.channels.find(alice.mailbox, channel)
    liar.honest()
    assert pinned(alice, channel).version == 10**9
    alice.client.keys.emergency_rotate(alice.mailbox, why="stolen")
    assert pinned(alice, channel).version == 2
    bob.mailbox.pinned_keys.drop_bundle(alice.name)  # an hour later
    alice.says(channel, "again")
    assert bob.hears(channel) == ["again"]


def test_what_was_forgotten_is_signed_past_what_members_have_seen(people: People, sql: Sql) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    old = pinned(alice, channel)
    bob.subscribes(channel)
    alice.client.channels.allow(alice.mailbox, channel, carol.name)
    alice.client.channels.disallow(alice.mailbox, channel, carol.name)
    bob.client.channels.find(bob.mailbox, channel)
    values = (old.channel_id, old.hash, encode_roster(old))
    sql("UPDATE channel_rosters SET version = 1, roster_hash = $2, roster = $3 WHERE channel_id = $1", *values)
    sql("UPDATE channels SET roster_version = 1 WHERE channel_id = $1", old.channel_id)
    forget_channel(alice.mailbox, channel)
    proposal = alice.client.channels.propose_roster(alice.mailbox, channel)
    assert ([one.nhi for one in proposal.members], proposal.by_server) == ([bob.name], False)
    alice.client.channels.sign_roster(alice.mailbox, channel, proposal.policy, proposal.members)
    assert pinned(alice, channel).version > 3
    alice.says(channel, "again")
    assert bob.hears(channel) == ["again"]


def test_a_waiting_word_of_a_pair_that_was_replaced_vouches_for_no_key(members: Members, liar: Liar) -> None:
    """Its thief named the next roster in advance."""
    alice, bob, carol, channel = members
    mallory, key = bob, EpochKey.generate()
    found = alice.client.channels.find(alice.mailbox, channel)
    present = pinned(alice, channel).edition
    coming = Edition(present.signer_id, present.version + 1)
    give(carol, alice, ChannelKey(found.channel_id, found.epoch, key, coming))
    alice.client.mail.receive(alice.mailbox)
    assert alice.client.channels.take_keys(alice.mailbox) == 0
    carol.client.keys.emergency_rotate(carol.mailbox, why="stolen")
    alice.mailbox.pinned_keys.drop_bundle(carol.name)  # an hour later
    alice.client.keys.find(alice.mailbox, carol.name)
    alice.client.channels.disallow(alice.mailbox, channel, mallory.name)
    through(liar, alice)
    liar.lie("GET", CHANNEL, lambda _, answer: answer.changed(epoch=found.epoch, epoch_key_id=str(key.key_id)))
    alice.client.channels.take_keys(alice.mailbox)
    assert alice.mailbox.channels.present_key(found.channel_id, key.key_id) is None


def far_edition(owner: Talker, channel: str) -> Edition:
    return Edition(pinned(owner, channel).signer_id, 2**40)


@pytest.mark.parametrize("frozen", ["roster", "roster and epoch"])
def test_word_of_a_later_roster_outlives_the_pair_that_gave_it_and_its_message(
    members: Members, liar: Liar, monkeypatch: pytest.MonkeyPatch, frozen: str
) -> None:
    """Carol has a key that was made without bob, and is still shown the roster with him."""
    alice, bob, carol, channel = members
    old, before = pinned(carol, channel), carol.client.channels.find(carol.mailbox, channel)
    alice.client.keys.rotate(alice.mailbox, signer=True)  # and signs the roster with the next pair
    alice.client.channels.disallow(alice.mailbox, channel, bob.name)
    alice.says(channel, "without bob")
    shown: dict[str, object] = {"roster_version": old.version, "without_key": 1}
    if frozen == "roster and epoch":
        shown |= {"epoch": before.epoch, "epoch_key_id": str(before.epoch_key_id)}
    liar.lie("GET", ROSTER, lambda _, answer: said(answer, roster_document(old)))
    liar.lie("GET", CHANNEL, lambda _, answer: answer.changed(**shown))
    lists(liar, bob)
    carol.client.mail.receive(carol.mailbox)
    refuses(carol, channel, liar)
    with monkeypatch.context() as later:
        later.setattr(channel_key_mail, "clock", SimpleNamespace(now=lambda: now() + timedelta(days=8)))
        carol.client.channels.take_keys(carol.mailbox)
    alice.client.keys.rotate(alice.mailbox, signer=True)
    carol.mailbox.pinned_keys.drop_bundle(alice.name)  # an hour later
    carol.client.keys.find(carol.mailbox, alice.name)
    refuses(carol, channel, liar)


def test_a_key_under_a_thiefs_roster_of_the_same_version_is_of_another_pair(
    people: People, liar: Liar, impatient: None
) -> None:
    alice, bob, carol, mallory = (people(name) for name in ("alice", "bob", "carol", "mallory"))
    channel = alice.creates(ChannelPolicy.ALLOWLIST)
    for one in (bob, carol):
        alice.client.channels.allow(alice.mailbox, channel, one.name, may_publish=True)
        one.subscribes(channel)
    true, stolen = pinned(alice, channel), alice.mailbox.identity.pair
    through(liar, bob)
    entry = Member(mallory.name, may_publish=False, may_subscribe=True)
    shows(liar, following(true, stolen, [*true.members, entry]))
    lists(liar, mallory, carol)
    key = sealed_under(bob, channel)
    assert mallory.client.mail.receive(mallory.mailbox, most=50).controls + takes(carol) >= 0
    alice.client.keys.emergency_rotate(alice.mailbox, why="stolen")
    assert pinned(alice, channel).version == true.version + 1
    for one in (bob, carol):
        one.mailbox.pinned_keys.drop_bundle(alice.name)  # an hour later
    liar.honest()
    for one in (carol, bob):
        assert sealed_under(one, channel) != key


def test_a_right_that_was_given_while_another_process_replaced_the_pair_is_not_lost(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.ALLOWLIST)
    pin_own, calls = alice.mailbox.rosters.pin_own, list[Roster]()

    def late(roster: Roster, at: datetime) -> bool:
        if not calls:
            calls.append(roster)
            alice.client.run(own_key_renewal.rotate_keys(alice.mailbox, signer=True))
        return pin_own(roster, at)

    with monkeypatch.context() as held_up:
        held_up.setattr(alice.mailbox.rosters, "pin_own", late)
        alice.client.channels.allow(alice.mailbox, channel, bob.name)
    assert [one.nhi for one in pinned(alice, channel).members] == [bob.name]
    bob.subscribes(channel)
