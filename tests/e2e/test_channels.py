"""Agents with mailboxes, a server and a channel: keys travel as mail, messages open for members and nobody else."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from uuid import UUID

import pytest

from angelia.channels import api
from angelia.channels.model import ChannelPolicy
from angelia.client import Client
from angelia.client.channel_reading import Unopened
from angelia.client.channel_rosters import first_roster
from angelia.client.operation_requests import ask
from angelia.client.transport import Outcome, Send, Step
from angelia.envelope.refusals import NotAllowed, UnknownKey
from angelia.envelope.rosters import roster_document
from angelia.errors import AlreadyExists, Denied, KeyNotFound
from angelia.mailbox.channels import ChannelMessage
from channel_agents import Talker
from held_keys import held_keys
from roster_steps import People
from server_process import ServerProcess


def test_who_joins_reads_what_is_published_next_without_having_allowed_anybody(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob, carol)
    bob.subscribes(channel)
    alice.says(channel, "one")
    assert bob.hears(channel) == ["one"]
    carol.subscribes(channel)
    alice.says(channel, "two")
    assert carol.hears(channel) == ["two"]
    assert bob.hears(channel) == ["one", "two"]
    bob.commits(channel, 1)
    assert bob.hears(channel) == ["two"]


def test_the_owner_gives_out_the_key_also_without_a_message(people: People) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    alice.says(channel, "before bob came")
    bob.subscribes(channel)
    shared = alice.client.channels.share_key(alice.mailbox, channel)
    assert (shared.sent, shared.failed) == ([bob.name], {})
    assert alice.client.channels.share_key(alice.mailbox, channel).sent == []
    assert bob.hears(channel, after=0) == ["before bob came"]  # of the present epoch


def test_a_removed_member_opens_nothing_that_comes_after(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob, carol)
    for one in (bob, carol):
        one.subscribes(channel)
    alice.says(channel, "all three")
    assert bob.hears(channel) == carol.hears(channel) == ["all three"]
    found = alice.client.channels.find(alice.mailbox, channel)
    alice.client.channels.disallow(alice.mailbox, found.channel_id, bob.name)
    alice.says(channel, "without bob")
    assert carol.hears(channel) == ["all three", "without bob"]
    with pytest.raises(Denied):
        bob.client.channels.messages(found.channel_id)
    # Carol hands bob the bytes: his key is of another epoch.
    sealed = carol.client.channels.messages(found.channel_id, after_offset=1).messages[0].envelope
    assert bob.mailbox.channels.key(found.channel_id, key_id(sealed), datetime.now(UTC)) is None


def key_id(envelope: dict[str, object]) -> UUID:
    return UUID(str(envelope["key_id"]))


def test_a_joiner_cannot_open_what_was_published_under_an_earlier_key(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob, carol)
    carol.subscribes(channel)
    alice.says(channel, "of the first epoch")
    found = alice.client.channels.find(alice.mailbox, channel)
    alice.client.channels.disallow(alice.mailbox, found.channel_id, carol.name)
    bob.subscribes(channel)
    alice.says(channel, "of the second")
    first, second = bob.page(channel, after=0)
    assert isinstance(first, Unopened)
    assert isinstance(first.error, UnknownKey)
    assert isinstance(second, ChannelMessage)


def test_an_absent_owner_stops_nobody(people: People, impatient: None) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, carol)
    found = alice.client.channels.find(alice.mailbox, channel)
    alice.client.channels.allow(alice.mailbox, found.channel_id, bob.name, may_publish=True)
    bob.subscribes(channel)
    carol.subscribes(channel)
    # Alice never publishes, so bob has no key: he makes the next one, and gives it to carol, who does not know him.
    bob.says(channel, "from bob")
    assert carol.hears(channel) == ["from bob"]
    assert bob.hears(channel) == ["from bob"]
    alice.subscribes(channel)
    bob.says(channel, "again")
    assert alice.hears(channel) == ["again"]


def test_what_a_publisher_who_never_subscribed_says_is_read_by_all(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, carol)
    carol.subscribes(channel)
    found = alice.client.channels.find(alice.mailbox, channel)
    alice.client.channels.allow(alice.mailbox, found.channel_id, bob.name, may_subscribe=False, may_publish=True)
    alice.says(channel, "from alice")
    bob.says(channel, "from bob, who never subscribed")
    alice.says(channel, "alice again")
    assert carol.hears(channel) == ["from alice", "from bob, who never subscribed", "alice again"]


def test_publishers_who_do_not_listen_agree_on_a_key_and_keep_it(people: People) -> None:
    alice, bob, carol, dave = (people(name) for name in ("alice", "bob", "carol", "dave"))
    channel = alice.creates(ChannelPolicy.ALLOWLIST, carol)
    carol.subscribes(channel)
    found = alice.client.channels.find(alice.mailbox, channel)
    for one in (bob, dave):
        alice.client.channels.allow(alice.mailbox, found.channel_id, one.name, may_subscribe=False, may_publish=True)
    epochs = [
        who.client.channels.publish(who.mailbox, channel, b"x").channel.epoch
        for who in (alice, bob, alice, bob, alice, dave, alice, bob, dave)
    ]
    assert epochs == [1, 2, 2, 2, 2, 3, 3, 3, 3]
    assert len(carol.hears(channel)) == 9
    # Whoever is removed has no part in what follows.
    alice.client.channels.disallow(alice.mailbox, found.channel_id, bob.name)
    assert alice.client.channels.publish(alice.mailbox, channel, b"without bob").channel.epoch == 4
    assert bob.client.mail.receive(bob.mailbox).controls == 0


def test_what_others_sealed_under_the_key_of_a_removed_publisher_still_opens_and_its_own_words_do_not(
    people: People,
) -> None:
    """Whoever was removed could write more under its old key, and date it back."""
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    alice.client.channels.allow(alice.mailbox, channel, carol.name, may_publish=True)
    for one in (bob, alice):
        one.subscribes(channel)
    carol.says(channel, "from carol")  # under a key that she made
    alice.says(channel, "from alice")
    assert alice.hears(channel) == ["from carol", "from alice"]
    alice.client.channels.disallow(alice.mailbox, channel, carol.name)
    first, second = bob.page(channel)
    assert isinstance(first, Unopened)
    assert isinstance(first.error, NotAllowed)
    assert isinstance(second, ChannelMessage)
    assert second.body == b"from alice"
    assert alice.hears(channel) == ["from carol", "from alice"]  # what was read before still opens
    alice.says(channel, "later")
    assert bob.hears(channel, after=2) == ["later"]


def test_a_key_of_a_removed_publisher_that_comes_late_seals_nothing(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST)
    for one in (bob, carol):
        alice.client.channels.allow(alice.mailbox, channel, one.name, may_publish=True)
    for one in (bob, alice):
        one.subscribes(channel)
    carol.says(channel, "from carol")
    alice.says(channel, "from alice, under carol's key")
    alice.client.channels.disallow(alice.mailbox, channel, carol.name)
    assert isinstance(bob.page(channel)[1], ChannelMessage)
    found = bob.client.channels.find(bob.mailbox, channel)
    (late,) = [one for one in held_keys(bob.mailbox, found.channel_id) if one.sender == carol.name]
    assert bob.mailbox.channels.present_key(found.channel_id, late.key_id) is None
    assert bob.client.channels.publish(bob.mailbox, channel, b"the next epoch").channel.epoch == late.epoch + 1


def test_in_an_open_channel_a_subscriber_that_once_asked_is_not_sent_the_key_for_ever(
    people: People, impatient: None
) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.OPEN)
    carol.subscribes(channel)
    alice.says(channel, "for carol")
    assert carol.hears(channel) == ["for carol"]
    bob.subscribes(channel)
    with pytest.raises(KeyNotFound):
        bob.client.channels.publish(bob.mailbox, channel, b"too early")  # he asks for the key
    for number in range(5):
        carol.says(channel, f"{number}")
    assert bob.client.mail.receive(bob.mailbox, most=50).controls == 1
    assert bob.hears(channel) == [f"{number}" for number in range(5)]
    assert carol.client.channels.find(carol.mailbox, channel).without_key == 0
    carol.says(channel, "once more")
    assert bob.client.mail.receive(bob.mailbox, most=50).controls == 0


def test_mail_about_a_channel_is_nobodys_but_its_recipients(people: People) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.ALLOWLIST)
    found = alice.client.channels.find(alice.mailbox, channel)
    alice.client.channels.allow(alice.mailbox, found.channel_id, bob.name, may_publish=True)
    bob.client.keys.find(bob.mailbox, alice.name)
    bob.mailbox.allowlist.allow(alice.name, datetime.now(UTC))
    alice.client.mail.send(alice.mailbox, bob.name, b"about the channel", channel_id=found.channel_id)
    bob.says(channel, "publishing looks for keys among the mail of the channel")
    assert [one.body for one in bob.client.mail.receive(bob.mailbox).messages] == [b"about the channel"]


def test_whoever_blocks_a_publisher_costs_it_one_seal_and_not_one_a_message(people: People) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.OPEN)
    bob.subscribes(channel)
    bob.client.agents.block(alice.name)
    for _ in range(4):
        posted = alice.client.channels.publish(alice.mailbox, channel, b"x")
        assert list(posted.unreached) == [bob.name]
    assert len([one for one in alice.mailbox.outbox.page(500) if one.recipient == bob.name]) == 1


def test_a_removal_while_the_key_is_given_out_makes_the_publisher_begin_again(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob, carol)
    found = alice.client.channels.find(alice.mailbox, channel)
    for one in (bob, carol):
        one.subscribes(channel)
    take, removed = alice.client._take, list[bool]()

    def removing(step: Step) -> Outcome:
        if isinstance(step, Send) and step.url.endswith("/keys") and not removed:
            removed.append(True)
            with Client(alice.url, identity=alice.mailbox) as other:
                other.channels.disallow(alice.mailbox, found.channel_id, carol.name)
        return take(step)

    alice.client._take = removing  # type: ignore[method-assign]
    posted = alice.client.channels.publish(alice.mailbox, channel, b"without carol")
    assert posted.channel.epoch == 2
    assert bob.hears(channel) == ["without carol"]


def test_an_owner_whose_first_try_was_cut_off_goes_on_with_the_channel_that_it_has(people: People) -> None:
    alice, bob = people("alice"), people("bob")
    roster = first_roster(alice.mailbox, "news", ChannelPolicy.OPEN, [])
    wanted = api.NewChannel(channel_name="news", policy=ChannelPolicy.OPEN, roster=roster_document(roster))
    made = alice.client.run(ask(api.CREATE, body=wanted))  # and the process ended here
    with pytest.raises(AlreadyExists) as refused:
        alice.creates(ChannelPolicy.OPEN)
    assert "angelia channel show news" in refused.value.hint
    bob.subscribes(made.name)
    alice.says(made.name, "the first")
    assert bob.hears(made.name) == ["the first"]


def test_who_left_and_publishes_in_the_same_epoch_makes_no_new_key(people: People) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.ALLOWLIST)
    found = alice.client.channels.find(alice.mailbox, channel)
    alice.client.channels.allow(alice.mailbox, found.channel_id, bob.name, may_publish=True)
    bob.subscribes(channel)
    alice.says(channel, "one")
    assert bob.hears(channel) == ["one"]
    bob.client.channels.unsubscribe(bob.mailbox, channel)
    assert bob.client.channels.publish(bob.mailbox, channel, b"two").channel.epoch == 1


def test_an_open_channel_is_everybodys_and_its_key_is_the_owners_affair(people: People, impatient: None) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.OPEN)
    bob.subscribes(channel)
    with pytest.raises(KeyNotFound):
        bob.client.channels.publish(bob.mailbox, channel, b"too early")
    alice.says(channel, "welcome")
    assert bob.hears(channel) == ["welcome"]
    bob.says(channel, "thanks")
    # Bob has the key, so he can give it to whoever comes next.
    carol.subscribes(channel)
    bob.says(channel, "hello carol")
    assert carol.hears(channel) == ["hello carol"]
    assert alice.client.channels.find(alice.mailbox, channel).epoch == 1


def test_rotations_of_publisher_and_subscriber_lose_nothing(people: People) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    bob.subscribes(channel)
    said = []
    for number in range(6):
        if number % 2:
            alice.client.keys.rotate(alice.mailbox, signer=True)
        if number % 3 == 2:
            bob.client.keys.rotate(bob.mailbox, signer=True)
        said.append(f"message {number}")
        alice.says(channel, said[-1])
        if number % 2:
            bob.hears(channel)
    assert bob.hears(channel) == said


def test_messages_of_a_publisher_who_rotated_since_open_for_who_meets_it_now(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, carol)
    found = alice.client.channels.find(alice.mailbox, channel)
    alice.client.channels.allow(alice.mailbox, found.channel_id, bob.name, may_publish=True)
    bob.subscribes(channel)
    alice.says(channel, "the key is alice's")
    for number in range(3):
        bob.says(channel, f"{number}")
        bob.client.keys.rotate(bob.mailbox, signer=True)
    carol.subscribes(channel)
    alice.client.channels.share_key(alice.mailbox, channel)
    assert carol.hears(channel, after=1) == ["0", "1", "2"]


def test_a_lost_mailbox_gets_the_key_of_the_channel_again(people: People) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    bob.subscribes(channel)
    alice.says(channel, "first")
    assert bob.hears(channel) == ["first"]
    found = bob.client.channels.find(bob.mailbox, channel)
    with bob.mailbox.database.transaction() as tx:
        tx.execute("DELETE FROM channel_keys")
    (lost,) = bob.page(channel)
    assert isinstance(lost, Unopened)
    # Once an hour it counts; the server was just told that the key was sent.
    assert bob.client.channels.show(found.channel_id).subscription is not None


def test_two_publishers_at_once_and_a_reader_who_follows(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, carol)
    found = alice.client.channels.find(alice.mailbox, channel)
    alice.client.channels.allow(alice.mailbox, found.channel_id, bob.name, may_publish=True)
    for one in (bob, carol):
        one.subscribes(channel)
    alice.says(channel, "start")

    def burst(who: Talker) -> None:
        for number in range(10):
            who.says(channel, f"{who.name} {number}")

    threads = [threading.Thread(target=burst, args=(who,)) for who in (alice, bob)]
    for thread in threads:
        thread.start()
    heard: list[ChannelMessage] = []
    for one in carol.client.channels.tail(carol.mailbox, channel):
        assert isinstance(one, ChannelMessage), one
        heard.append(one)
        if len(heard) == 21:
            break
    for thread in threads:
        thread.join(60)
    assert [one.offset for one in heard] == list(range(1, 22))
    assert {one.body.decode() for one in heard} == {"start"} | {
        f"{who.name} {number}" for who in (alice, bob) for number in range(10)
    }


def test_two_who_need_the_next_key_at_once_agree_on_one(people: People) -> None:
    alice, bob, carol, dave = (people(name) for name in ("alice", "bob", "carol", "dave"))
    channel = alice.creates(ChannelPolicy.ALLOWLIST, carol, dave)
    found = alice.client.channels.find(alice.mailbox, channel)
    alice.client.channels.allow(alice.mailbox, found.channel_id, bob.name, may_publish=True)
    for one in (alice, bob, carol, dave):
        one.subscribes(channel)
    alice.says(channel, "start")
    bob.hears(channel)
    alice.client.channels.disallow(alice.mailbox, found.channel_id, carol.name)
    threads = [threading.Thread(target=who.says, args=(channel, who.name)) for who in (alice, bob)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(dave.hears(channel)) == sorted(["start", alice.name, bob.name])
    assert alice.client.channels.show(found.channel_id).epoch == 2


def test_everything_acknowledged_is_there_after_the_server_was_killed(people: People, server: ServerProcess) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    bob.subscribes(channel)
    said = [f"message {number}" for number in range(5)]
    for text in said:
        alice.says(channel, text)
    bob.commits(channel, 2)
    server.kill("worker")
    server.kill("postgres")
    server.wait_until_healthy(server.start_url, 60)
    assert bob.hears(channel) == said[2:]
    alice.says(channel, "and on")
    assert bob.hears(channel, after=5) == ["and on"]
