"""What a relay still tried once rosters were signed: another channel, another owner, a former pair, an owner misled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from angelia.channels import api as channels
from angelia.channels.model import ChannelPolicy
from angelia.client import Client
from angelia.client.channel_reading import Unopened
from angelia.client.operation_requests import ask
from angelia.client.peer_keys import Renamed
from angelia.envelope.refusals import NotAllowed
from angelia.envelope.rosters import FIRST_PREVIOUS, Member, Roster, UntrustedRoster, encode_roster, roster_document
from angelia.envelope.sealing import ChannelKey, EpochKey
from angelia.envelope.times import unix_ms
from angelia.errors import AngeliaError, Denied, NotFound
from angelia.mailbox import identity
from angelia.mailbox.channels import ChannelMessage
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.notices import NoticeKind
from channel_agents import Talker, without_roster
from lying_proxy import Answer, Asked, Liar, problem
from roster_steps import (
    CHANNEL,
    ROSTER,
    People,
    Sql,
    first_of,
    following,
    give,
    id_of,
    lists,
    now,
    pinned,
    refuses,
    shows,
    smuggle,
    through,
    told,
)


def angelia(who: Talker, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line of an agent; its mailbox is closed meanwhile, as another process has it."""
    who.close()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANGELIA_")}
    command = [str(Path(sys.executable).parent / "angelia"), *arguments, "--as", who.name]
    done = subprocess.run(
        command, env=kept | {"ANGELIA_HOME": str(who.home)}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    who.mailbox, who.client = who._opened()
    return done


# Another channel, or another owner.


def test_another_channel_shown_for_the_one_that_is_read_makes_nobody_a_publisher(
    people: People, liar: Liar, sql: Sql
) -> None:
    alice, bob, mallory = people("alice"), people("bob"), people("mallory")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    through(liar, bob)
    bob.subscribes(channel)
    channel_id = id_of(alice, channel)
    bait = mallory.client.channels.create(mallory.mailbox, "bait", ChannelPolicy.OPEN)
    smuggle(sql, channel_id, mallory)
    key = EpochKey.generate()
    mallory.client.channels.set_epoch(channel_id, 2, key.key_id)
    mallory.client.channels.publish_envelope(
        channel_id, mallory.mailbox.channels.seal(channel_id, key, b"pay mallory", now())
    )
    give(mallory, bob, ChannelKey(channel_id, 2, key))
    swapped = msgspec.to_builtins(bait) | {"epoch": 2, "epoch_key_id": str(key.key_id)}
    liar.instead("GET", f"/v1/channels/{channel_id}", told(swapped))
    liar.lie("GET", CHANNEL + "/messages", lambda _, answer: answer.changed(roster_version=9))
    with pytest.raises(UntrustedRoster, match="asked for the channel"):
        bob.client.channels.read(bob.mailbox, channel_id, after_offset=0)
    liar.honest()
    [post] = bob.client.channels.read(bob.mailbox, channel_id, after_offset=0).messages
    assert isinstance(post, Unopened)
    assert isinstance(post.error, NotAllowed)


def test_a_stale_epoch_moves_no_message_into_another_channel(people: People, liar: Liar) -> None:
    alice, dave, mallory = people("alice"), people("dave"), people("mallory")
    channel = alice.creates(ChannelPolicy.ALLOWLIST)
    alice.client.channels.allow(alice.mailbox, channel, dave.name, may_publish=True)
    through(liar, dave)
    channel_id = id_of(dave, channel)
    bait = mallory.client.channels.create(mallory.mailbox, "bait", ChannelPolicy.ALLOWLIST)
    mallory.client.channels.allow(mallory.mailbox, bait.name, dave.name, may_publish=True)
    with Client(dave.url, identity=dave.mailbox) as other:
        swapped = told(msgspec.to_builtins(other.channels.show(bait.channel_id)))
    liar.instead("POST", f"/v1/channels/{channel_id}/publish", problem(409, "epoch_stale"))
    answers = iter([None])
    liar.lie("GET", f"/v1/channels/{channel_id}", lambda _, answer: next(answers, swapped) or answer)
    with pytest.raises(UntrustedRoster, match="asked for the channel"):
        dave.client.channels.publish(dave.mailbox, channel, b"secret of alice's channel")
    assert mallory.client.channels.find(mallory.mailbox, bait.name).total_messages == 0


def test_who_has_joined_a_channel_believes_no_other_owner_of_it(people: People, liar: Liar, sql: Sql) -> None:
    """Its own has signed no roster yet; another agent has signed one for the same id."""
    alice, bob, mallory = people("alice"), people("bob"), people("mallory")
    made = alice.client.run(without_roster(ChannelPolicy.ALLOWLIST, bob.name))
    bob.subscribes(made.name)
    through(liar, bob)
    smuggle(sql, made.channel_id, mallory)
    key = EpochKey.generate()
    mallory.client.channels.set_epoch(made.channel_id, 1, key.key_id)
    sealed = mallory.mailbox.channels.seal(made.channel_id, key, b"pay mallory", now())
    mallory.client.channels.publish_envelope(made.channel_id, sealed)
    give(mallory, bob, ChannelKey(made.channel_id, 1, key))
    calls_it_hers(liar, mallory, made.channel_id)
    with pytest.raises(UntrustedRoster):
        bob.client.channels.read(bob.mailbox, made.channel_id, after_offset=0)
    assert bob.mailbox.rosters.pinned(made.channel_id) is None


def test_the_command_line_publishes_under_the_name_that_was_said(people: People, liar: Liar) -> None:
    """The relay shows the channel as it is, then as another owner's."""
    alice, dave, mallory = people("alice"), people("dave"), people("mallory")
    channel = alice.creates(ChannelPolicy.ALLOWLIST)
    alice.client.channels.allow(alice.mailbox, channel, dave.name, may_publish=True)
    channel_id = id_of(alice, channel)
    calls_it_hers(liar, mallory, channel_id, first=lambda answer: answer.changed(roster_version=0))
    lists(liar, mallory)
    done = angelia(dave, "channel", "publish", channel, "secret", "--url", liar.url)
    assert (done.returncode, "untrusted_roster" in done.stderr) == (3, True), done.stderr
    assert liar.count("POST", r"/v1/messages.*") == liar.count("POST", CHANNEL + "/publish") == 0


def test_a_channel_that_was_taken_for_another_owners_can_be_forgotten(people: People, liar: Liar) -> None:
    """A first look by id believes what it is shown. What it then pinned must not stay in the way for ever."""
    alice, bob, mallory = people("alice"), people("bob"), people("mallory")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    channel_id = id_of(alice, channel)
    through(liar, bob)
    calls_it_hers(liar, mallory, channel_id)
    assert bob.client.channels.find(bob.mailbox, channel_id).owner_nhi == mallory.name
    liar.honest()
    with pytest.raises(UntrustedRoster):
        bob.client.channels.find(bob.mailbox, channel)
    done = angelia(bob, "channel", "forget", str(channel_id), "--yes")
    assert done.returncode == 0, done.stderr
    bob.subscribes(channel)
    assert pinned(bob, channel).owner_nhi == alice.name


def calls_it_hers(
    liar: Liar, mallory: Talker, channel_id: object, first: Callable[[Answer], Answer] | None = None
) -> None:
    """The liar shows a channel as mallory's, with a roster that she has signed, at first as it is told to."""
    shown = iter([] if first is None else [first])

    def hers(asked: Asked, answer: Answer) -> Answer:
        tell = next(shown, None)
        return answer.changed(owner_nhi=mallory.name, roster_version=1) if tell is None else tell(answer)

    liar.lie("GET", f"/v1/channels/{channel_id}", hers)
    forged = first_of(mallory, channel_id)  # type: ignore[arg-type]
    liar.instead("GET", f"/v1/channels/{channel_id}/roster", told(msgspec.to_builtins(roster_document(forged))))


# A pair that was replaced.


def test_a_former_pair_takes_no_place_of_a_later_ones_roster(people: People, liar: Liar) -> None:
    """The relay hides that the pair was revoked, and the thief dates its roster back."""
    alice, bob, mallory = people("alice"), people("bob"), people("mallory")
    channel = alice.creates(ChannelPolicy.ALLOWLIST)
    alice.client.channels.allow(alice.mailbox, channel, bob.name, may_publish=True)
    through(liar, bob)
    bob.subscribes(channel)
    stolen, before = alice.mailbox.identity.pair, unix_ms(now())
    liar.lie("GET", r"/v1/keys/.*", lambda _, answer: answer.changed(revoked=[]))
    alice.client.keys.emergency_rotate(alice.mailbox, why="stolen")
    bob.mailbox.pinned_keys.drop_bundle(alice.name)  # an hour later
    bob.client.channels.find(bob.mailbox, channel)
    mended = pinned(bob, channel)
    entry = Member(mallory.name, may_publish=True, may_subscribe=True)
    shows(liar, following(mended, stolen, [*mended.members, entry], issued_at=before))
    lists(liar, mallory)
    refuses(bob, channel, liar)
    assert pinned(bob, channel) == mended


def test_a_reader_hears_within_the_hour_that_the_owners_pair_was_revoked(people: People, liar: Liar) -> None:
    alice, bob, mallory = people("alice"), people("bob"), people("mallory")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    through(liar, bob)
    bob.subscribes(channel)
    stolen, true = alice.mailbox.identity.pair, pinned(alice, channel)
    entry = Member(mallory.name, may_publish=True, may_subscribe=True)
    with Client(alice.url, identity=alice.mailbox) as thief:
        thief.channels.put_roster(following(true, stolen, [*true.members, entry]))
    mallory.says(channel, "one")
    assert bob.hears(channel) == ["one"]
    mallory.says(channel, "two")
    alice.client.keys.emergency_rotate(alice.mailbox, why="stolen")
    liar.lie("GET", CHANNEL + "/messages", lambda _, answer: answer.changed(roster_version=2))
    bob.mailbox.pinned_keys.drop_bundle(alice.name)  # an hour later
    [first, second] = bob.client.channels.read(bob.mailbox, true.channel_id, after_offset=0).messages
    assert isinstance(first, ChannelMessage)  # it was read before
    assert isinstance(second, Unopened)


def test_a_member_who_meets_the_channel_takes_no_roster_of_a_pair_that_was_replaced(people: People) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    alice.mailbox.channels.forget(id_of(alice, channel), now())  # so that she does not sign it again by herself
    alice.client.keys.rotate(alice.mailbox, signer=True)
    bob.client.keys.find(bob.mailbox, alice.name)
    with pytest.raises(UntrustedRoster) as refused:
        bob.subscribes(channel)
    assert "angelia channel sign news" in refused.value.hint
    proposal = alice.client.channels.propose_roster(alice.mailbox, channel)
    assert ([one.nhi for one in proposal.members], proposal.by_server) == ([bob.name], False)
    alice.client.channels.sign_roster(alice.mailbox, channel, proposal.policy, proposal.members)
    bob.subscribes(channel)
    assert pinned(bob, channel).version == 2


def test_an_emergency_that_was_interrupted_signs_the_rosters_all_the_same(people: People) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.ALLOWLIST)
    alice.client.channels.allow(alice.mailbox, channel, bob.name, may_publish=True)
    bob.subscribes(channel)
    alice.says(channel, "under a key that a thief may have")
    assert bob.hears(channel) == ["under a key that a thief may have"]
    alice.mailbox.key_rotation.begin(now(), signer=True, emergency=True, why="stolen")  # and the process dies
    alice.reopen()
    alice.client.keys.publish(alice.mailbox)
    bob.mailbox.pinned_keys.drop_bundle(alice.name)  # an hour later; alice is away
    bob.says(channel, "the roster stands")
    assert pinned(bob, channel).version == 3


def test_a_roster_that_could_not_be_signed_again_is_told_of_and_signed_with_the_next_mail(
    people: People, liar: Liar
) -> None:
    alice = people("alice")
    channel = alice.creates(ChannelPolicy.ALLOWLIST)
    through(liar, alice)
    liar.instead("PUT", ROSTER, problem(403, "forbidden"))
    alice.client.keys.rotate(alice.mailbox, signer=True)
    assert any(f"the roster of {channel} could not be signed" in one.text for one in alice.mailbox.notices.take())
    liar.honest()
    alice.reopen()
    alice.client.keys.renew_due(alice.mailbox)
    assert alice.mailbox.rosters.signed_by_former() == []
    assert pinned(alice, channel).version == 2


def test_a_removal_that_was_not_written_down_before_the_pair_was_replaced_stands(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob, carol = people("alice"), people("bob"), people("carol")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob, carol)
    bob.subscribes(channel)
    alice.says(channel, "with bob")
    assert bob.hears(channel) == ["with bob"]
    removed_and_killed(alice, channel, bob, monkeypatch)
    alice.client.keys.rotate(alice.mailbox, signer=True)
    told = [one.text for one in alice.mailbox.notices.take()]
    assert any(f"has taken rights in {channel} from {bob.name}" in one for one in told)
    mended = pinned(alice, channel)
    assert ([one.nhi for one in mended.members], mended.keys_since) == ([carol.name], mended.version)
    shown = angelia(alice, "channel", "show", "news", "--url", alice.url)
    assert shown.returncode == 0, shown.stderr
    alice.says(channel, "without bob")
    with pytest.raises((NotFound, Denied)):
        bob.hears(channel)


def removed_and_killed(alice: Talker, channel: str, bob: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that removes a member dies before it has written so down."""

    def die(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as killed:
        killed.setattr(alice.mailbox.rosters, "pin_own", die)
        with pytest.raises(RuntimeError):
            alice.client.channels.disallow(alice.mailbox, channel, bob.name)


def test_a_relay_that_calls_the_middle_pair_revoked_takes_no_roster_back(people: People, liar: Liar) -> None:
    alice, bob, mallory = people("alice"), people("bob"), people("mallory")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, mallory)
    alice.client.channels.allow(alice.mailbox, channel, bob.name, may_publish=True)
    of_first_pair = pinned(alice, channel)
    through(liar, bob)
    bob.subscribes(channel)
    alice.client.keys.rotate(alice.mailbox, signer=True)
    alice.client.channels.disallow(alice.mailbox, channel, mallory.name)
    bob.mailbox.pinned_keys.drop_bundle(alice.name)  # an hour later
    bob.client.channels.find(bob.mailbox, channel)
    removed, middle = pinned(bob, channel), alice.mailbox.identity.pair.public.signer_id
    assert removed.signer_id == middle
    alice.client.keys.rotate(alice.mailbox, signer=True)
    liar.lie("GET", r"/v1/keys/.*", lambda _, answer: answer.changed(revoked=[str(middle)]))
    bob.mailbox.pinned_keys.drop_bundle(alice.name)
    shows(liar, of_first_pair)
    lists(liar, mallory)
    refuses(bob, channel, liar)
    assert pinned(bob, channel) == removed


def test_a_pair_that_was_replaced_takes_over_no_name(people: People, liar: Liar) -> None:
    """The relay hides that it was revoked, and shows another channel under the name, which the thief has signed."""
    alice, bob, mallory = people("alice"), people("bob"), people("mallory")
    channel = alice.creates(ChannelPolicy.ALLOWLIST)
    alice.client.channels.allow(alice.mailbox, channel, bob.name, may_publish=True)
    through(liar, bob)
    bob.subscribes(channel)
    stolen = alice.mailbox.identity.pair
    liar.lie("GET", r"/v1/keys/.*", lambda _, answer: answer.changed(revoked=[]))
    alice.client.keys.emergency_rotate(alice.mailbox, why="stolen")
    bob.mailbox.pinned_keys.drop_bundle(alice.name)  # an hour later
    bob.client.channels.find(bob.mailbox, channel)
    mended, other = pinned(bob, channel), uuid4()
    entry = Member(mallory.name, may_publish=True, may_subscribe=True)
    first = {"channel_id": other, "version": 1, "prev_roster_hash": FIRST_PREVIOUS}
    late = unix_ms(now() + timedelta(seconds=200))
    taken = following(mended, stolen, [*mended.members, entry], issued_at=late, **first)
    page = msgspec.to_builtins(alice.client.channels.list(owner=alice.name, name="news"))
    page["channels"][0]["channel_id"] = str(other)
    shown = msgspec.to_builtins(bob.client.channels.show(mended.channel_id)) | {"epoch": 0, "epoch_key_id": None}
    liar.instead("GET", "/v1/channels", told(page))
    shown |= {"channel_id": str(other), "roster_version": 1, "without_key": 1}
    liar.instead("GET", CHANNEL, told(shown))
    liar.instead("GET", ROSTER, told(msgspec.to_builtins(roster_document(taken))))
    liar.instead("POST", CHANNEL + "/epoch", told(shown))
    lists(liar, mallory)
    refuses(bob, channel, liar)
    assert pinned(bob, channel) == mended


# The owner, and who wants to leave.


def test_an_owner_signs_on_top_of_no_forged_roster(people: People, liar: Liar) -> None:
    """Else a version that nobody signed would be the last one that there is room for."""
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    true = pinned(alice, channel)
    shown = msgspec.to_builtins(alice.client.channels.show(true.channel_id))
    through(liar, alice)
    shows(liar, replace(true, version=2**53 - 2, prev_roster_hash=bytes([1]) * 32))
    liar.instead("PUT", ROSTER, told(shown))
    with pytest.raises(UntrustedRoster, match="forged"):
        alice.client.channels.sign_roster(alice.mailbox, channel, ChannelPolicy.ALLOWLIST, true.members)
    with pytest.raises(UntrustedRoster, match="forged"):
        alice.client.channels.propose_roster(alice.mailbox, channel)
    assert liar.count("PUT", ROSTER) == 0
    liar.honest()
    alice.client.channels.disallow(alice.mailbox, channel, bob.name)
    assert pinned(alice, channel).version == 2


def test_a_process_that_was_held_up_takes_back_nothing(
    people: People, liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes after another process of the agent has replaced the pair and removed a member."""
    alice, bob, mallory = people("alice"), people("bob"), people("mallory")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob, mallory)
    mallory.subscribes(channel)
    held: list[tuple[Roster, datetime]] = []
    with monkeypatch.context() as stopped:
        stopped.setattr(alice.mailbox.rosters, "pin_own", lambda *given: held.append(given) or True)
        alice.client.channels.allow(alice.mailbox, channel, bob.name, may_publish=True)
    with Mailbox(alice.home, identity.load(alice.home, alice.name, lambda: ""), now()) as box:
        with Client(alice.url, identity=box) as other:
            other.channels.find(box, channel)
            other.keys.rotate(box, signer=True)
            other.channels.disallow(box, channel, mallory.name)
            shown = msgspec.to_builtins(other.channels.find(box, channel))
        removed = box.rosters.named(channel)
    [(late, at)] = held
    alice.mailbox.rosters.pin_own(late, at)
    assert pinned(alice, channel) == removed
    alice.mailbox.own_keys.refresh()
    through(liar, alice)
    shows(liar, late)
    for asked in (("PUT", ROSTER), ("POST", CHANNEL + "/epoch")):
        liar.instead(*asked, told(shown | {"roster_version": late.version + 1}))
    lists(liar, mallory)
    refuses(alice, channel, liar)
    assert pinned(alice, channel) == removed


def test_a_deleted_channel_is_not_asked_for_with_every_message(people: People, liar: Liar) -> None:
    alice, bob = people("alice"), people("bob")
    alice.client.channels.delete(alice.mailbox, alice.creates(ChannelPolicy.ALLOWLIST))
    gone = alice.client.channels.create(alice.mailbox, "old", ChannelPolicy.ALLOWLIST)
    alice.client.run(ask(channels.DELETE, gone.channel_id))  # from another mailbox of hers
    alice.client.keys.rotate(alice.mailbox, signer=True)
    through(liar, alice)
    for _ in range(2):
        alice.client.mail.send(alice.mailbox, bob.name, b"hello")
    assert liar.count("GET", CHANNEL) == 0
    assert NoticeKind.WARNING not in [one.kind for one in alice.mailbox.notices.take()]


def test_a_fault_of_the_disk_while_rosters_are_looked_at_spoils_no_send(people: People) -> None:
    alice, bob = people("alice"), people("bob")
    with alice.mailbox.database.transaction() as tx:
        tx.execute("ALTER TABLE channel_rosters RENAME TO lost")
    alice.client.mail.send(alice.mailbox, bob.name, b"hello")
    assert any("the rosters of your channels could not be signed" in one.text for one in alice.mailbox.notices.take())
    bob.allow(alice)
    [message] = bob.client.mail.receive(bob.mailbox).messages
    assert message.body == b"hello"


def test_to_sign_again_after_an_interruption_goes_past_what_was_seen(people: People, liar: Liar, sql: Sql) -> None:
    """The server was put back from an old copy, and the first run ended on its way."""
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    first = pinned(alice, channel)
    alice.client.channels.disallow(alice.mailbox, channel, bob.name)
    alice.client.channels.allow(alice.mailbox, channel, bob.name)
    values = (first.channel_id, first.hash, encode_roster(first))
    sql("UPDATE channel_rosters SET version = 1, roster_hash = $2, roster = $3 WHERE channel_id = $1", *values)
    sql("UPDATE channels SET roster_version = 1 WHERE channel_id = $1", first.channel_id)
    through(liar, alice)
    proposal = alice.client.channels.propose_roster(alice.mailbox, channel)
    told_of = iter([None])
    refusal = problem(403, "forbidden")
    liar.lie("PUT", ROSTER, lambda _, answer: next(told_of, refusal) or answer)
    with pytest.raises(AngeliaError):
        alice.client.channels.sign_roster(alice.mailbox, channel, proposal.policy, proposal.members)
    liar.honest()
    alice.client.channels.sign_roster(alice.mailbox, channel, proposal.policy, proposal.members)
    alice.says(channel, "again")


def test_a_bad_roster_keeps_nobody_in_a_channel(people: People, sql: Sql) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.ALLOWLIST, bob)
    bob.subscribes(channel)
    sql("UPDATE channels SET roster_version = 99 WHERE channel_id = $1", id_of(alice, channel))
    for who, *command in ((bob, "pause"), (bob, "unsubscribe"), (alice, "delete", "--yes")):
        done = angelia(who, "channel", command[0], channel, *command[1:], "--url", who.url)
        assert done.returncode == 0, done.stderr


def test_an_agent_is_listed_by_the_handle_that_it_has_claimed(people: People) -> None:
    alice, bob = people("alice"), people("bob")
    channel = alice.creates(ChannelPolicy.ALLOWLIST)
    with pytest.raises(Renamed, match=bob.name):
        alice.client.channels.allow(alice.mailbox, channel, str(bob.mailbox.identity.id))
