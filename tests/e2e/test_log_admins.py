"""Admins of group logs on real nodes: they come, go, replace their keys, and change a group at the same time."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from angelia.client import log_membership
from angelia.client.exchange import Response
from angelia.client.log_nodes import ask_nodes, node_request
from angelia.envelope.refusals import NotAllowed
from angelia.grouplog import api
from angelia.grouplog.model.documents import GroupDocument
from angelia.grouplog.model.editions import EditionNode, GroupEdition
from log_fleet import Fleet, Member, befriend, texts


@pytest.fixture(scope="module")
def fleet(directory: Path) -> Iterator[Fleet]:
    fleet = Fleet(directory, nodes=2)
    fleet.start()
    yield fleet
    fleet.stop()


@pytest.fixture
def members(fleet: Fleet, tmp_path: Path) -> Iterator[list[Member]]:
    """Alice, Bob, Carol and Dave, who know each other."""
    made = [Member(fleet.url, tmp_path / name, name) for name in ("alice", "bob", "carol", "dave")]
    befriend(made)
    yield made
    for one in made:
        one.end()


@pytest.fixture
def name(fleet: Fleet, members: list[Member]) -> str:
    """A group that Alice made, of which Carol is an admin and Bob a member."""
    alice, bob, carol, _ = members
    name = f"team-{secrets.token_hex(4)}"
    alice.logs.create(name, nodes=fleet.urls, members=[bob.name])
    settled = alice.logs.add(name, [carol.name], admin=True)
    assert (settled.behind, settled.untold) == ({}, {})
    return name


def edition_of(member: Member, name: str) -> GroupEdition:
    """The group as a member has it that has just read its mail."""
    member.logs.list()
    return member.logs.find(name)


def rosters(member: Member, edition: GroupEdition) -> list[set[str]]:
    """The members by the rosters of the nodes."""
    log, handles = member.open(edition.name), {one.sender.hex(): one.handle for one in edition.members}
    outcomes = log._run(ask_nodes(log.opened, edition.nodes, lambda node: node_request(api.SHOW, node, log.opened.gid)))
    answers = [one for one in outcomes.values() if isinstance(one, Response)]
    return [{handles[one.sender] for one in answer.read(GroupDocument).roster} for answer in answers]


def test_an_admin_that_replaces_its_key_stays_one_as_soon_as_the_owner_has_read_of_it(
    members: list[Member], name: str
) -> None:
    alice, bob, carol, dave = members
    edition_of(carol, name)
    carol.client.keys.rotate(carol.mailbox, signer=True)
    carol.reopen()
    with pytest.raises(NotAllowed, match="has not said yet"):
        carol.logs.add(name, [dave.name])
    assert texts(carol.restarted(name)) == [], "nodes know her next key"
    alice.logs.list()
    assert edition_of(carol, name).owner.handle == alice.name
    settled = carol.logs.add(name, [dave.name])
    assert (settled.behind, settled.untold) == ({}, {})
    for one in (alice, bob, dave):
        assert edition_of(one, name) == settled.edition


@pytest.mark.parametrize("emergency", [False, True])
def test_an_owner_that_replaces_its_key_is_believed_by_members_that_read_late_and_the_old_key_is_not(
    members: list[Member], name: str, emergency: bool
) -> None:
    alice, bob, carol, dave = members
    before = edition_of(bob, name)
    if emergency:
        alice.client.keys.emergency_rotate(alice.mailbox, why="laptop lost")
    else:
        alice.client.keys.rotate(alice.mailbox, signer=True)
    alice.reopen()
    settled = alice.logs.add(name, [dave.name])
    assert (settled.behind, settled.untold) == ({}, {})
    assert settled.edition.epoch > before.epoch, "what is written now has a key that a thief does not have"
    for one in (bob, carol, dave):
        assert edition_of(one, name) == settled.edition
    assert settled.edition.owner.public_key != before.owner.public_key
    alice.restarted(name).append("under the new key")
    reading = bob.open(name)
    assert ([one.text for one in reading.sync().entries], reading.check().sound) == (["under the new key"], True)


def test_what_two_admins_change_at_once_holds_both(members: list[Member], name: str) -> None:
    alice, bob, carol, dave = members
    edition_of(carol, name)
    alice.mailbox.logs.find(name)
    carols = carol.mailbox.logs.find(name)
    alice.logs.remove(name, [bob.name])
    with no_mail():
        carol.logs.add(name, [dave.name])
    assert carol.mailbox.logs.find(name).lineage[0] == carols.digest, "she had not read of what Alice changed"
    for _ in range(2):
        for one in (alice, carol):
            one.logs.list()
    newest = edition_of(alice, name)
    assert {one.handle for one in newest.members} == {alice.name, carol.name, dave.name}
    for one in (carol, dave):
        assert edition_of(one, name) == newest
    assert rosters(alice, newest) == [{alice.name, carol.name, dave.name}] * 2


def test_an_admin_that_was_removed_changes_nothing_more_also_for_members_that_read_late(
    members: list[Member], name: str
) -> None:
    alice, bob, carol, dave = members
    edition_of(carol, name)
    removal = alice.logs.remove(name, [carol.name])
    with no_mail():
        taken = carol.logs.add(name, [dave.name])
    assert {error.code for error in taken.behind.values()} == {"not_member"}
    assert edition_of(bob, name) == removal.edition
    assert edition_of(dave, name) == taken.edition, "he knows of no other"
    assert {error.code for error in dave.open(name).sync().unread.values()} == {"not_member"}
    assert rosters(alice, removal.edition) == [{alice.name, bob.name}] * 2
    settled = alice.logs.add(name, [dave.name])
    assert edition_of(dave, name) == settled.edition


def test_a_node_whose_address_is_none_keeps_no_member_from_the_others(members: list[Member], name: str) -> None:
    alice, bob, _, _ = members
    before = alice.mailbox.logs.find(name)
    nowhere = EditionNode(bytes(32), "http://..")
    wanted = msgspec.structs.replace(before, nodes=(*before.nodes, nowhere))
    log_membership.publish_next(alice.mailbox, before, wanted)
    alice.logs.settle(name)
    alice.restarted(name).append("on the others")
    reading = bob.open(name)
    synced = reading.sync()
    assert texts(reading) == ["on the others"]
    assert {node: error.code for node, error in synced.unread.items()} == {nowhere.id: "invalid_argument"}


@contextmanager
def no_mail() -> Iterator[None]:
    """No edition arrives by mail meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_membership, "collect_editions", lambda mailbox: iter(()))
        yield
