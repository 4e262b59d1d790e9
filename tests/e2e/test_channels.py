"""Agents with mailboxes, a server and a channel: keys travel as mail, messages open for members and nobody else."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from angelia.channels.model import Policy
from angelia.client import Client
from angelia.client.channel_reading import Unopened
from angelia.envelope.refusals import UnknownKey
from angelia.errors import Denied, KeyNotFound
from angelia.mailbox import identity
from angelia.mailbox.box import Mailbox
from angelia.mailbox.channels import ChannelMessage
from processes import ServerProcess

LIMITS = (
    "register=off,identity=off,keys=off,bundles=off,channels=off,publish=off,channel_commits=off,send=off,receive=off"
)


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(directory / f"channels-{secrets.token_hex(4)}", limits=LIMITS)
    server.start()
    yield server
    server.stop()


class Person:
    """An agent with a mailbox of its own and a client that speaks for it."""

    def __init__(self, server: ServerProcess, home: Path, name: str) -> None:
        self.name = f"{name}-{secrets.token_hex(3)}"
        made = identity.create(home, self.name)
        with Client(server.start_url, identity=made) as client:
            agent = client.register(made.public_key)
            client.claim_handle(self.name)
        made = identity.record_registration(home, made, id=agent.id, handle=self.name, server=server.start_url)
        self.mailbox = Mailbox(home, made, datetime.now(UTC))
        self.client = Client(server.start_url, identity=self.mailbox)
        self.client.publish_keys(self.mailbox)

    def creates(self, policy: Policy, *allowed: Person) -> str:
        channel = self.client.create_channel(self.mailbox, "news", policy, allow=[one.name for one in allowed])
        return channel.name

    def subscribes(self, channel: str) -> None:
        self.client.subscribe(self.mailbox, channel)

    def says(self, channel: str, text: str) -> None:
        posted = self.client.publish(self.mailbox, channel, text.encode())
        assert posted.unreached == {}

    def page(self, channel: str, after: int | None = None) -> list[ChannelMessage | Unopened]:
        found = self.client.find_channel(self.mailbox, channel)
        return self.client.read_channel(self.mailbox, found.channel_id, after_offset=after, max_messages=100).messages

    def hears(self, channel: str, after: int | None = None) -> list[str]:
        page = self.page(channel, after)
        assert all(isinstance(one, ChannelMessage) for one in page), page
        return [one.body.decode() for one in page if isinstance(one, ChannelMessage)]

    def commits(self, channel: str, offset: int) -> None:
        self.client.commit(self.client.find_channel(self.mailbox, channel).channel_id, offset)

    def close(self) -> None:
        self.client.close()
        self.mailbox.close()


People = Callable[[str], Person]


@pytest.fixture
def people(server: ServerProcess, tmp_path: Path) -> Iterator[People]:
    made: list[Person] = []

    def make(name: str) -> Person:
        made.append(Person(server, tmp_path, name))
        return made[-1]

    yield make
    for person in made:
        person.close()


def test_who_joins_reads_what_is_published_next_without_having_allowed_anybody(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(Policy.ALLOWLIST, bob, carol)
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
    channel = alice.creates(Policy.ALLOWLIST, bob)
    alice.says(channel, "before bob came")
    bob.subscribes(channel)
    shared = alice.client.share_key(alice.mailbox, channel)
    assert (shared.sent, shared.failed) == ([bob.name], {})
    assert alice.client.share_key(alice.mailbox, channel).sent == []
    assert bob.hears(channel, after=0) == ["before bob came"]  # of the present epoch


def test_a_removed_member_opens_nothing_that_comes_after(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(Policy.ALLOWLIST, bob, carol)
    for one in (bob, carol):
        one.subscribes(channel)
    alice.says(channel, "all three")
    assert bob.hears(channel) == carol.hears(channel) == ["all three"]
    found = alice.client.find_channel(alice.mailbox, channel)
    alice.client.disallow(found.channel_id, bob.name)
    alice.says(channel, "without bob")
    assert carol.hears(channel) == ["all three", "without bob"]
    with pytest.raises(Denied):
        bob.client.channel_messages(found.channel_id)
    # Carol hands bob the bytes: his key is of another epoch.
    sealed = carol.client.channel_messages(found.channel_id, after_offset=1).messages[0].envelope
    assert bob.mailbox.channels.key(found.channel_id, key_id(sealed), datetime.now(UTC)) is None


def key_id(envelope: dict[str, object]) -> UUID:
    return UUID(str(envelope["key_id"]))


def test_a_joiner_cannot_open_what_was_published_under_an_earlier_key(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(Policy.ALLOWLIST, bob, carol)
    carol.subscribes(channel)
    alice.says(channel, "of the first epoch")
    found = alice.client.find_channel(alice.mailbox, channel)
    alice.client.disallow(found.channel_id, carol.name)
    bob.subscribes(channel)
    alice.says(channel, "of the second")
    first, second = bob.page(channel, after=0)
    assert isinstance(first, Unopened)
    assert isinstance(first.error, UnknownKey)
    assert isinstance(second, ChannelMessage)


def test_an_absent_owner_stops_nobody(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(Policy.ALLOWLIST, carol)
    found = alice.client.find_channel(alice.mailbox, channel)
    alice.client.allow(found.channel_id, bob.name, may_publish=True)
    bob.subscribes(channel)
    carol.subscribes(channel)
    # Alice never publishes, so bob has no key: he makes the next one, and gives it to carol, who does not know him.
    bob.says(channel, "from bob")
    assert carol.hears(channel) == ["from bob"]
    assert bob.hears(channel) == ["from bob"]
    alice.subscribes(channel)
    bob.says(channel, "again")
    assert alice.hears(channel) == ["again"]


def test_an_open_channel_is_everybodys_and_its_key_is_the_owners_affair(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(Policy.OPEN)
    bob.subscribes(channel)
    with pytest.raises(KeyNotFound):
        bob.client.publish(bob.mailbox, channel, b"too early")
    alice.says(channel, "welcome")
    assert bob.hears(channel) == ["welcome"]
    bob.says(channel, "thanks")
    # Bob has the key, so he can give it to whoever comes next.
    carol.subscribes(channel)
    bob.says(channel, "hello carol")
    assert carol.hears(channel) == ["hello carol"]
    assert alice.client.find_channel(alice.mailbox, channel).epoch == 1


def test_rotations_of_publisher_and_subscriber_lose_nothing(people: People) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(Policy.ALLOWLIST, bob)
    bob.subscribes(channel)
    said = []
    for number in range(6):
        if number % 2:
            alice.client.rotate_keys(alice.mailbox, signer=True)
        if number % 3 == 2:
            bob.client.rotate_keys(bob.mailbox, signer=True)
        said.append(f"message {number}")
        alice.says(channel, said[-1])
        if number % 2:
            bob.hears(channel)
    assert bob.hears(channel) == said


def test_messages_of_a_publisher_who_rotated_since_open_for_who_meets_it_now(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(Policy.ALLOWLIST, carol)
    found = alice.client.find_channel(alice.mailbox, channel)
    alice.client.allow(found.channel_id, bob.name, may_publish=True)
    bob.subscribes(channel)
    alice.says(channel, "the key is alice's")
    for number in range(3):
        bob.says(channel, f"{number}")
        bob.client.rotate_keys(bob.mailbox, signer=True)
    carol.subscribes(channel)
    alice.client.share_key(alice.mailbox, channel)
    assert carol.hears(channel, after=1) == ["0", "1", "2"]


def test_a_lost_mailbox_gets_the_key_of_the_channel_again(people: People) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(Policy.ALLOWLIST, bob)
    bob.subscribes(channel)
    alice.says(channel, "first")
    assert bob.hears(channel) == ["first"]
    found = bob.client.find_channel(bob.mailbox, channel)
    with bob.mailbox.database.transaction() as tx:
        tx.execute("DELETE FROM channel_keys")
    (lost,) = bob.page(channel)
    assert isinstance(lost, Unopened)
    # Once an hour it counts; the server was just told that the key was sent.
    assert bob.client.channel(found.channel_id).subscription is not None


def test_two_publishers_at_once_and_a_reader_who_follows(people: People) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(Policy.ALLOWLIST, carol)
    found = alice.client.find_channel(alice.mailbox, channel)
    alice.client.allow(found.channel_id, bob.name, may_publish=True)
    for one in (bob, carol):
        one.subscribes(channel)
    alice.says(channel, "start")

    def burst(who: Person) -> None:
        for number in range(10):
            who.says(channel, f"{who.name} {number}")

    threads = [threading.Thread(target=burst, args=(who,)) for who in (alice, bob)]
    for thread in threads:
        thread.start()
    heard: list[ChannelMessage] = []
    for one in carol.client.tail(carol.mailbox, channel):
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
    channel = alice.creates(Policy.ALLOWLIST, carol, dave)
    found = alice.client.find_channel(alice.mailbox, channel)
    alice.client.allow(found.channel_id, bob.name, may_publish=True)
    for one in (alice, bob, carol, dave):
        one.subscribes(channel)
    alice.says(channel, "start")
    bob.hears(channel)
    alice.client.disallow(found.channel_id, carol.name)
    threads = [threading.Thread(target=who.says, args=(channel, who.name)) for who in (alice, bob)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(dave.hears(channel)) == sorted(["start", alice.name, bob.name])
    assert alice.client.channel(found.channel_id).epoch == 2


def test_everything_acknowledged_is_there_after_the_server_was_killed(people: People, server: ServerProcess) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(Policy.ALLOWLIST, bob)
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
