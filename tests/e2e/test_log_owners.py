"""Owners of group logs on real nodes: they replace their keys, and what they could not reach is done later."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from angelia.client import log_membership
from angelia.client.exchange import Response
from angelia.client.log_nodes import ask_nodes, node_request
from angelia.errors import Conflict, Denied
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
    """A group that Alice made, of which Bob and Carol are members."""
    alice, bob, carol, _ = members
    name = f"team-{secrets.token_hex(4)}"
    settled = alice.logs.create(name, nodes=fleet.urls, members=[bob.name, carol.name])
    assert (settled.behind, settled.untold) == ({}, {})
    return name


def edition_of(member: Member, name: str) -> GroupEdition:
    """The group as a member has it that has just read its mail."""
    member.logs.list()
    return member.logs.find(name)


def rosters(member: Member, edition: GroupEdition) -> list[set[str]]:
    """The members by the rosters of the nodes."""
    log = member.open(edition.name)
    handles = {one.sender.hex(): one.handle for one in (*edition.members, *edition.past)}
    outcomes = log._run(ask_nodes(log.opened, edition.nodes, lambda node: node_request(api.SHOW, node, log.opened.gid)))
    answers = [one for one in outcomes.values() if isinstance(one, Response)]
    return [{handles[one.sender] for one in answer.read(GroupDocument).roster} for answer in answers]


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


def test_no_other_member_changes_a_group(members: list[Member], name: str) -> None:
    alice, bob, _, dave = members
    before = edition_of(bob, name)
    for change in (
        lambda: bob.logs.add(name, [dave.name]),
        lambda: bob.logs.remove(name, [alice.name]),
        lambda: bob.logs.replace_nodes(name, [node.url for node in before.nodes[:1]]),
        lambda: bob.logs.settle(name, again=True),
        lambda: bob.logs.drop(name),
    ):
        with pytest.raises(Denied, match=f"only {alice.name}"):
            change()
    assert list(bob.mailbox.logs.untold(before)) == []
    with pytest.raises(Conflict, match="stay its member"):
        alice.logs.remove(name, [alice.name])
    assert edition_of(alice, name) == before
    assert rosters(alice, before) == [{one.handle for one in before.members}] * 2


def test_what_an_owner_could_not_reach_it_brings_to_nodes_and_members_by_itself_later(
    fleet: Fleet, members: list[Member], name: str
) -> None:
    alice, bob, carol, _ = members
    with fleet.without(1):
        settled = alice.logs.remove(name, [bob.name])
    assert [one.code for one in settled.behind.values()] == ["network"]
    assert edition_of(carol, name) == settled.edition
    alice.reopen()
    alice.logs.list()
    behind = [roster for roster in rosters(alice, settled.edition) if bob.name in roster]
    assert len(behind) == 1, "it is not asked again at once"
    with pytest.MonkeyPatch.context() as later:
        later.setattr(log_membership.clock, "now", lambda: datetime.now(UTC) + timedelta(minutes=11))
        alice.logs.list()
    assert rosters(alice, settled.edition) == [{alice.name, carol.name}] * 2


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
