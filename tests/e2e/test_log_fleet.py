"""Group logs on five nodes that are stopped, damaged, replaced, and lie: what members read stays true and whole."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from angelia.client import AsyncClient, Client, log_checking, log_compacting
from angelia.client.log_checking import CheckFault
from angelia.client.log_nodes import ask_nodes, node_request
from angelia.client.log_reading import page_of
from angelia.client.log_verbs import AsyncLogs, BlockingLog, BlockingLogs
from angelia.client.log_writing import append_to
from angelia.client.transport import Trip
from angelia.envelope import group_sealing
from angelia.envelope.group_sealing import GroupPlace
from angelia.envelope.sealing import EpochKey
from angelia.errors import AngeliaError, Conflict, NotDurable
from angelia.grouplog import api
from angelia.grouplog.model import placement
from angelia.grouplog.model.frames import CURSOR_BYTES, Backfill, End, Hello, LogMessage, Type
from angelia.grouplog.model.ids import MAX_SEQ
from angelia.grouplog.model.records import Record
from angelia.grouplog.model.updates import Update
from log_fleet import Fleet, Killed, Member, befriend, flipped, forgotten, holders, killed_at, messages_of, texts
from lying_proxy import Answer, Asked, Liar, lying, problem

LINES = [f"line {number:03} " + "x" * 100 for number in range(60)]


@pytest.fixture(scope="module")
def fleet(directory: Path) -> Iterator[Fleet]:
    fleet = Fleet(directory)
    fleet.start()
    yield fleet
    fleet.stop()


@pytest.fixture(scope="module")
def members(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    """Alice, Bob and Carol, who know each other."""
    home = tmp_path_factory.mktemp("members")
    made = [Member(fleet.url, home / name, name) for name in ("alice", "bob", "carol")]
    befriend(made)
    yield made
    for one in made:
        one.end()


@dataclass
class Team:
    """A group of Alice, its admin, and Bob."""

    name: str
    group: bytes
    alice: Member
    bob: Member
    log: BlockingLog  # Alice's

    @property
    def sender(self) -> bytes:
        return self.log.opened.replica.me.sender


def team_of(alice: Member, bob: Member, urls: list[str], **how: int) -> Team:
    name = f"team-{secrets.token_hex(4)}"
    settled = alice.logs.create(name, nodes=urls, members=[bob.name], **how)
    assert (settled.behind, settled.untold) == ({}, {})
    return Team(name, settled.edition.group, alice, bob, alice.open(name))


@pytest.fixture
def team(fleet: Fleet, members: list[Member]) -> Team:
    return team_of(members[0], members[1], fleet.urls)


@dataclass
class Compacted:
    """A team whose lines are in one snapshot, a shard of it on each node."""

    team: Team
    seq: int
    shards: list[int]  # the number of the node of each shard


def compacted_team(members: list[Member], fleet: Fleet) -> Compacted:
    team = team_of(members[0], members[1], fleet.urls)
    team.log.append(*LINES)
    done = team.log.compact(2)
    assert len(done.forgotten_by) == 5
    return Compacted(team, done.seq, holders(team.log, team.sender, done.seq))


@pytest.fixture
def compacted(members: list[Member], fleet: Fleet) -> Compacted:
    return compacted_team(members, fleet)


class TestTwoNodesAway:
    def test_a_snapshot_is_rebuilt_whichever_shards_are_out_of_reach(self, two_away: list[Compacted]) -> None:
        for compacted in two_away:
            reading = compacted.team.bob.open(compacted.team.name)
            synced = reading.sync()
            assert (synced.snapshots, synced.incomplete, synced.untrue) == (1, [], [])
            assert len(synced.unread) == 2
            assert texts(reading) == sorted(LINES)

    def test_updates_are_durable_and_read_by_others(self, two_away: list[Compacted]) -> None:
        team = two_away[0].team
        reading = team.bob.open(team.name)
        reading.sync()
        written = team.log.append(*LINES[:20])
        assert written.durable
        assert set(written.failures) <= set(reading.sync().unread)
        assert texts(reading) == sorted([*LINES, *LINES[:20]])


@pytest.fixture(scope="class")
def two_away(fleet: Fleet, members: list[Member]) -> Iterator[list[Compacted]]:
    """Snapshots of five teams, whose shards are placed differently on the nodes."""
    made = [compacted_team(members, fleet) for _ in range(5)]
    with fleet.without(1, 3):
        yield made


def test_damaged_shards_are_read_around_named_and_mended(fleet: Fleet, compacted: Compacted) -> None:
    team = compacted.team
    first, second = compacted.shards[1], compacted.shards[3]
    fleet.damage(team.group, team.sender, compacted.seq, first, second)
    reading = team.bob.open(team.name)
    nodes = reading.edition.node_ids
    assert {one.node for one in reading.sync().untrue} == {nodes[first], nodes[second]}
    assert texts(reading) == sorted(LINES)
    found = reading.check().findings
    assert {one.node for one in found if one.fault is CheckFault.DAMAGED} == {nodes[first], nodes[second]}
    missing = {(one.node, one.index) for one in found if one.fault is CheckFault.MISSING_SHARD}
    assert missing == {(nodes[first], 1), (nodes[second], 3)}
    repair = reading.repair()
    assert {(one.node, one.index) for one in repair.repaired} == {(nodes[first], 1), (nodes[second], 3)}
    assert repair.left == []
    assert reading.check().sound


def test_a_damaged_update_is_mended_by_its_sender_only(fleet: Fleet, team: Team) -> None:
    team.log.append(*LINES[:5])
    nodes = team.log.edition.node_ids
    placed = placement.ranked(nodes, team.group, team.sender, 3)[0]
    fleet.damage(team.group, team.sender, 3, nodes.index(placed))
    reading = team.bob.open(team.name)
    reading.sync()
    assert texts(reading) == LINES[:5]
    found = {(one.fault, one.seq, one.node) for one in reading.repair().left}
    assert found == {(CheckFault.DAMAGED, 3, placed), (CheckFault.THIN, 3, None)}
    log = team.alice.restarted(team.name)
    assert {(one.seq, one.node) for one in log.repair().repaired} == {(3, placed)}
    assert reading.check().sound


@pytest.fixture(scope="class")
def stricken(fleet: Fleet, members: list[Member]) -> Iterator[Compacted]:
    """A snapshot of which three shards are out of reach."""
    compacted = compacted_team(members, fleet)
    with fleet.without(*compacted.shards[:3]):
        compacted.team.log = members[0].restarted(compacted.team.name)
        yield compacted


def test_a_check_keeps_little_of_what_the_nodes_hold_in_memory_and_finds_the_same(
    fleet: Fleet, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    team.log.append(*LINES)
    nodes = team.log.edition.node_ids
    fleet.damage(team.group, team.sender, 30, nodes.index(placement.ranked(nodes, team.group, team.sender, 30)[0]))
    whole = team.log.check()
    assert [one.seq for one in whole.findings] == [30, 30], "damaged, and on too few nodes"
    peaks = list[int]()
    judge = log_checking._Checking.judge

    def watched(checking: log_checking._Checking, end: bytes | None) -> None:
        peaks.append(len(checking.open))
        judge(checking, end)

    monkeypatch.setattr(log_checking._Checking, "judge", watched)
    monkeypatch.setattr(log_checking, "_LIMIT", 3)
    monkeypatch.setattr(log_checking, "_MOST_AHEAD", 5)
    paged = team.log.check()
    assert (paged.findings, paged.messages, paged.sizes) == (whole.findings, whole.messages, whole.sizes)
    assert (list(paged.held), len(peaks) > 10) == ([(team.sender, 30)], True)
    assert max(peaks) < 5 + 3 * len(nodes)


def test_a_check_ends_where_nodes_have_faults_without_end(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    team.log.append(*LINES)
    monkeypatch.setattr(log_checking, "_LIMIT", 3)
    monkeypatch.setattr(log_checking, "_MOST_FINDINGS", 4)
    monkeypatch.setattr(placement, "copies", lambda *_: 5)
    checked = team.log.check()
    assert 4 < len(checked.findings) < 60
    assert {error.code for error in checked.unread.values()} == {"bad_answer"}


def test_an_export_has_no_older_file_of_a_node_that_is_away(fleet: Fleet, team: Team, tmp_path: Path) -> None:
    team.log.append(*LINES[:3])
    assert len(team.log.export(tmp_path).files) == 5
    with fleet.without(2):
        exported = team.alice.restarted(team.name).export(tmp_path)
    assert set(exported.unread) == {team.log.edition.node_ids[2]}
    assert sorted(tmp_path.iterdir()) == sorted(path for path, _ in exported.files.values())


class TestThreeNodesAway:
    def test_the_snapshot_is_incomplete_and_nothing_of_it_counts_as_received(self, stricken: Compacted) -> None:
        team = stricken.team
        reading = team.bob.without_state(team.name)
        synced = reading.sync()
        assert synced.incomplete == [(team.alice.name, stricken.seq, 2, 3)]
        assert (synced.entries, synced.snapshots, reading.vector, texts(reading)) == ([], 0, {}, [])

    def test_nodes_that_do_not_answer_are_named_and_their_shards_are_not_called_lost(self, stricken: Compacted) -> None:
        checked = stricken.team.log.check()
        assert set(checked.unread) == {stricken.team.log.edition.node_ids[one] for one in stricken.shards[:3]}
        assert checked.findings == []

    def test_the_next_snapshot_is_not_durable_and_nothing_is_forgotten(self, stricken: Compacted) -> None:
        log = stricken.team.log
        before, own = forgotten(log), log.vector[stricken.team.sender]
        assert log.append("one more").durable
        with pytest.raises(NotDurable):
            log.compact(2)
        with pytest.raises(NotDurable):
            log.compact(2)
        assert forgotten(log) == before
        assert len(log.opened.snapshots.unfinished_snapshots()) == 1
        assert log.vector[stricken.team.sender] == own + 1

    def test_an_own_snapshot_that_waits_for_nodes_is_not_called_missing(self, stricken: Compacted) -> None:
        log = stricken.team.log
        with pytest.raises(NotDurable):
            log.compact(2)
        assert log.append("behind the snapshot that waits").durable
        assert log.sync().missing == []


def test_a_snapshot_that_too_few_nodes_took_is_finished_once_the_others_are_back(
    fleet: Fleet, compacted: Compacted
) -> None:
    team = compacted.team
    with fleet.without(0, 2):
        log = team.alice.restarted(team.name)
        log.append("one more")
        before = forgotten(log)
        with pytest.raises(NotDurable):
            log.compact(2)
        assert forgotten(log) == before
        (waiting,) = log.opened.snapshots.unfinished_snapshots()
    log = team.alice.restarted(team.name)
    done = log.compact(2)
    assert (done.seq, len(done.forgotten_by), done.pending) == (waiting.seq, 5, {})
    reading = team.bob.open(team.name)
    reading.sync()
    assert texts(reading) == sorted([*LINES, "one more"])
    assert reading.check().sound


# Crashes of the device that takes a snapshot.


@pytest.mark.parametrize("answered", [False, True], ids=["before it asks", "after the answers"])
def test_a_snapshot_whose_device_dies_at_any_step_is_taken_once_and_nothing_is_forgotten_too_early(
    fleet: Fleet, members: list[Member], answered: bool
) -> None:
    alice, bob = members[:2]
    step, went_on = 0, 0
    while True:
        team = team_of(alice, bob, fleet.urls)
        team.log.append(*LINES[:40])
        try:
            alice.client.run(killed_at(log_compacting.compact(team.log.opened, 2), step, answered=answered))
        except Killed:
            step += 1
        else:
            break
        log = alice.restarted(team.name)
        captured = log.opened.snapshots.unfinished_snapshots()
        if log.opened.snapshots.open_completions():
            log.compact_if_due()
        else:
            assert set(forgotten(log).values()) == {0}, "forgotten before the snapshot was durable"
            done = log.compact(2)
            assert [done.seq] == ([one.seq for one in captured] or [41])
            went_on += bool(captured)
        assert set(forgotten(log).values()) == {1}
        assert log.opened.snapshots.open_completions() == []
        reading = bob.open(team.name)
        reading.sync()
        assert texts(reading) == sorted(LINES[:40])
        assert log.check().sound
        bob.restarted(team.name)
    assert step >= 3
    assert went_on


# A node that lies.


@pytest.fixture(scope="module")
def liar(fleet: Fleet) -> Iterator[Liar]:
    with lying(fleet.urls[0]) as liar:
        yield liar


@dataclass
class LiedTo:
    """A team whose first node stands behind a liar. It was honest until now."""

    team: Team
    liar: Liar

    @property
    def node(self) -> bytes:
        return self.team.log.edition.node_ids[0]

    def lie(self, change: Callable[[list[LogMessage]], list[LogMessage]]) -> None:
        self.liar.lie("POST", ".*/backfill", messages_of(change))


@pytest.fixture
def lied_to(fleet: Fleet, members: list[Member], liar: Liar) -> LiedTo:
    liar.honest()
    return LiedTo(team_of(members[0], members[1], [liar.url, *fleet.urls[1:]]), liar)


def other_group(fleet: Fleet, members: list[Member]) -> LogMessage:
    """A message of another group of the same members."""
    replica = team_of(members[0], members[1], fleet.urls).log.opened.replica
    sealed = replica.sealed(99, 0, Update(0, b"of another group").encode())
    return LogMessage(replica.me.sender, 99, Record(0, sealed).encode())


altered_at = pytest.mark.parametrize(
    "at", [0, 8, 7, 9, 21, -1], ids=["version", "earlier epoch", "later epoch", "nonce", "body", "tag"]
)


@altered_at
def test_a_message_that_a_node_altered_is_named_and_the_true_one_is_read(lied_to: LiedTo, at: int) -> None:
    team = lied_to.team
    team.log.append(*LINES[:20])
    lied_to.lie(lambda messages: [flipped(one, at) for one in messages])
    reading = team.bob.open(team.name)
    synced = reading.sync()
    assert texts(reading) == sorted(LINES[:20])
    assert {one.node for one in synced.untrue} == {lied_to.node}


@altered_at
def test_a_check_blames_the_node_that_altered_a_message_and_not_its_sender(lied_to: LiedTo, at: int) -> None:
    team = lied_to.team
    team.log.append(*LINES[:20])
    lied_to.lie(lambda messages: [flipped(one, at) for one in messages])
    findings = team.bob.open(team.name).check().findings
    assert {(one.fault, one.node) for one in findings if one.fault is not CheckFault.THIN} == {
        (CheckFault.UNTRUE, lied_to.node)
    }


def test_a_shard_that_a_node_altered_is_named_and_the_snapshot_is_rebuilt_from_others(lied_to: LiedTo) -> None:
    team = lied_to.team
    team.log.append(*LINES)
    team.log.compact(2)
    lied_to.lie(lambda messages: [flipped(one, 0) for one in messages])
    reading = team.bob.open(team.name)
    synced = reading.sync()
    assert (synced.snapshots, [one.node for one in synced.untrue]) == (1, [lied_to.node])
    assert texts(reading) == sorted(LINES)
    assert {one.node for one in reading.check().findings} == {lied_to.node}


def test_what_a_node_repeats_and_reorders_is_applied_once(lied_to: LiedTo) -> None:
    team = lied_to.team
    team.log.append(*LINES[:20])
    seen: list[LogMessage] = []

    def repeat(messages: list[LogMessage]) -> list[LogMessage]:
        seen.extend(messages)
        return [*reversed(seen), *seen]

    lied_to.lie(repeat)
    reading = team.bob.open(team.name)
    assert sorted(entry.text for entry in reading.sync().entries) == sorted(LINES[:20])
    assert reading.sync().entries == []
    assert reading.vector == team.log.vector


def test_a_message_that_a_node_hands_out_under_another_number_is_named_and_not_applied(lied_to: LiedTo) -> None:
    team = lied_to.team
    team.log.append(*LINES[:20])
    lied_to.lie(lambda messages: [LogMessage(one.sender, one.seq + 100, one.record) for one in messages])
    reading = team.bob.open(team.name)
    synced = reading.sync()
    assert texts(reading) == sorted(LINES[:20])
    assert synced.untrue
    assert {one.node for one in synced.untrue} == {lied_to.node}
    assert reading.vector == team.log.vector


def test_a_row_of_another_group_is_named_and_not_applied(fleet: Fleet, members: list[Member], lied_to: LiedTo) -> None:
    team, foreign = lied_to.team, other_group(fleet, members)
    team.log.append("true")
    mine = LogMessage(team.sender, foreign.seq, foreign.record)
    lied_to.lie(lambda messages: sorted([*messages, foreign, mine], key=lambda one: (one.sender, one.seq)))
    reading = team.bob.open(team.name)
    synced = reading.sync()
    assert texts(reading) == ["true"]
    assert {(one.node, one.sender) for one in synced.untrue} == {(lied_to.node, one.sender) for one in (foreign, mine)}
    assert reading.vector == team.log.vector


def test_what_a_node_withholds_is_read_from_the_others(lied_to: LiedTo) -> None:
    team = lied_to.team
    team.log.append(*LINES[:20])
    lied_to.lie(lambda messages: [])
    reading = team.bob.open(team.name)
    synced = reading.sync()
    assert (texts(reading), synced.missing) == (sorted(LINES[:20]), [])
    thin = reading.check().findings
    assert {one.fault for one in thin} == {CheckFault.THIN}


def test_what_the_only_node_withholds_is_named_as_missing_and_the_vector_stops_before_it(
    fleet: Fleet, members: list[Member], liar: Liar
) -> None:
    liar.honest()
    team = team_of(members[0], members[1], [liar.url, *fleet.urls[1:]], min_copies=1)
    team.log.append(*LINES)
    liar.lie("POST", ".*/backfill", messages_of(lambda messages: []))
    reading = team.bob.open(team.name)
    nodes = reading.edition.node_ids
    withheld = [seq for seq in range(1, 61) if placement.ranked(nodes, team.group, team.sender, seq)[0] == nodes[0]]
    known = max(seq for seq in range(1, 61) if seq not in withheld)
    missing = reading.sync().missing
    named = [seq for one in missing for seq in range(one.first, one.last + 1)]
    assert named == [seq for seq in withheld if seq < known]
    assert {one.sender for one in missing} == {team.alice.name}
    assert reading.vector.get(team.sender, 0) == withheld[0] - 1
    liar.honest()
    assert reading.sync().missing == []
    assert texts(reading) == sorted(LINES)


def test_a_node_whose_pages_do_not_end_does_not_hold_up_the_others(lied_to: LiedTo) -> None:
    team, pages = lied_to.team, iter(range(1, 30))
    team.log.append(*LINES[:5])

    def endless(_: Asked, answer: Answer) -> Answer:
        number = next(pages, None)
        if number is None:
            return answer
        return replace(answer, body=End(True, number.to_bytes(CURSOR_BYTES), []).encode())

    lied_to.liar.lie("POST", ".*/backfill", endless)
    lied_to.liar.asked.clear()
    reading = team.bob.open(team.name)
    synced = reading.sync()
    assert texts(reading) == LINES[:5]
    assert set(synced.unread) == {lied_to.node}
    assert lied_to.liar.count("POST", ".*/backfill") < 15


def test_an_answer_of_more_frames_than_were_asked_for_is_not_taken_apart(lied_to: LiedTo) -> None:
    team = lied_to.team
    team.log.append(*LINES[:5])
    empty = b"\0\0\0\1" + bytes((Type.MESSAGE,))
    lied_to.liar.lie("POST", ".*/backfill", lambda _, answer: replace(answer, body=empty * 1_000_000))
    reading = team.bob.open(team.name)
    synced = reading.sync()
    assert texts(reading) == LINES[:5]
    assert {node: error.message.partition(" has ")[2] for node, error in synced.unread.items()} == {
        lied_to.node: "more than was asked for"
    }


def test_an_answer_that_its_node_did_not_sign_confirms_no_shard(lied_to: LiedTo) -> None:
    team = lied_to.team
    team.log.append(*LINES)
    lied_to.liar.lie("PUT", ".*/shards/.*", lambda asked, answer: replace(answer, body=flip_last(answer.body)))
    done = team.log.compact(2)
    assert (len(done.confirmed_by), lied_to.node in done.confirmed_by) == (4, False)


def test_a_node_that_could_not_forget_is_told_again_when_the_agent_uses_the_log_next(lied_to: LiedTo) -> None:
    team = lied_to.team
    team.log.append(*LINES)
    lied_to.liar.instead("POST", ".*/deletions", problem(503, "unavailable"))
    assert list(team.log.compact(2).pending) == [lied_to.node]
    lied_to.liar.honest()
    log = team.alice.restarted(team.name)
    log.append("next")
    log.sync()
    assert set(forgotten(log).values()) == {1}


def flip_last(body: bytes) -> bytes:
    return body[:-1] + bytes((body[-1] ^ 1,))


def test_a_node_that_invents_the_last_number_of_a_member_cannot_silence_it(lied_to: LiedTo) -> None:
    team = lied_to.team
    team.log.append("before the device was lost")
    sender = team.sender.hex()
    lied_to.liar.lie("GET", ".*/vector", lambda _, answer: answer.changed(highest={sender: MAX_SEQ}))
    log = team.alice.without_state(team.name)
    log.sync()
    assert log.append("on the new device").durable
    reading = team.bob.open(team.name)
    reading.sync()
    assert texts(reading) == ["before the device was lost", "on the new device"]


# Members and nodes that come and go.


def test_a_removed_member_reads_nothing_new(team: Team) -> None:
    team.log.append("for both")
    reading = team.bob.open(team.name)
    reading.sync()
    settled = team.alice.logs.remove(team.name, [team.bob.name])
    assert settled.behind == {}
    log = team.alice.restarted(team.name)
    log.append("for Alice alone")
    (sealed,) = [one for one in raw(log) if one.seq == 2]
    synced = reading.sync()
    assert {type(error).code for error in synced.unread.values()} == {"not_member"}
    assert len(synced.unread) == 5
    # Also a node that serves him nevertheless has only what he has no key for.
    taken = reading.opened.replica.take_in([(reading.edition.node_ids[0], sealed)])
    assert (taken.entries, taken.later) == ([], True)
    assert texts(reading) == ["for both"]
    with pytest.raises(AngeliaError):
        team.bob.mailbox.logs.keys(reading.edition, settled.edition.epoch)


def raw(log: BlockingLog) -> list[LogMessage]:
    """What the nodes have of a group, as they have it."""
    found: dict[tuple[bytes, int], LogMessage] = {}
    wanted = Backfill(Hello({}, {}), 1000, 4 << 20).encode()
    for node in log.edition.nodes:
        request = node_request(api.BACKFILL, node, log.opened.gid, body=wanted)
        outcomes = log._run(ask_nodes(log.opened, [node], lambda _, request=request: request))
        messages, _, _ = page_of(outcomes[node.id], b"", 5_000)
        found |= {(one.sender, one.seq): one for one in messages}
    return list(found.values())


def test_a_new_member_reads_what_was_written_before_its_time(members: list[Member], team: Team) -> None:
    bobs = team.bob.open(team.name)
    bobs.append("by Bob")
    team.log.append(*LINES)
    team.log.compact(2)
    team.alice.logs.remove(team.name, [team.bob.name])
    log = team.alice.restarted(team.name)
    log.append("under the second key")
    carol = members[2]
    assert team.alice.logs.add(team.name, [carol.name]).untold == {}
    log.compact(2)
    reading = carol.open(team.name)
    synced = reading.sync()
    assert (synced.missing, synced.untrue, synced.incomplete) == ([], [], [])
    assert texts(reading) == sorted(["by Bob", *LINES, "under the second key"])
    assert reading.append("by Carol").durable
    assert [entry.text for entry in log.sync().entries] == ["by Carol"]


def test_what_was_on_a_node_that_left_is_stored_on_the_new_one(fleet: Fleet, members: list[Member]) -> None:
    team = team_of(members[0], members[1], fleet.urls[:4])
    bobs = team.bob.open(team.name)
    team.log.append(*LINES)
    assert team.log.compact(2).confirmed_by
    team.log.append("after the snapshot", *LINES[:20])
    bobs.append(*LINES[20:40])
    assert team.alice.logs.replace_nodes(team.name, fleet.urls[1:]).behind == {}
    log = team.alice.restarted(team.name)
    new = log.edition.node_ids[-1]
    log.repair()
    bobs = team.bob.restarted(team.name)
    repair = bobs.repair()
    assert repair.left == []
    checked = bobs.check()
    assert checked.sound
    assert checked.messages[new] > 0
    assert texts(bobs) == sorted([*LINES, "after the snapshot", *LINES[:40]])


def test_a_node_that_joins_late_knows_members_that_were_and_serves_them_nothing(
    fleet: Fleet, members: list[Member], tmp_path: Path
) -> None:
    alice, bob, carol = members
    befriend([alice, bob, carol])
    team = team_of(alice, bob, fleet.urls[:4])
    team.bob.open(team.name).append(*LINES[:3])
    team.log.sync()
    alice.logs.remove(team.name, [bob.name])
    assert alice.logs.add(team.name, [carol.name, bob.name]).behind == {}, "bob comes back under another number"
    alice.logs.remove(team.name, [bob.name])
    assert alice.logs.replace_nodes(team.name, fleet.urls[1:]).behind == {}
    log = alice.restarted(team.name)
    log.compact(2)
    assert log.repair().left == []
    reading = carol.open(team.name)
    assert (reading.sync().untrue, texts(reading)) == ([], sorted(LINES[:3]))
    unread = team.bob.restarted(team.name).sync().unread
    assert {error.code for error in unread.values()} == {"not_member"}


def test_a_node_that_calls_every_number_a_conflict_keeps_no_member_from_writing(lied_to: LiedTo) -> None:
    team = lied_to.team
    lied_to.liar.lie("POST", ".*/messages", lambda asked, answer: problem(409, "conflict"))
    written = team.log.append(*LINES[:10])
    assert written.durable, "on the next nodes"
    assert {error.code for error in written.failures.values()} == {"conflict"}
    assert sorted(entry.text for entry in team.bob.open(team.name).sync().entries) == sorted(LINES[:10])


def test_a_member_finds_the_new_nodes_when_it_reads_next(fleet: Fleet, members: list[Member]) -> None:
    team = team_of(members[0], members[1], fleet.urls[:2])
    reading = team.bob.open(team.name)
    reading.sync()
    assert team.alice.logs.replace_nodes(team.name, fleet.urls[2:4]).untold == {}
    assert team.alice.restarted(team.name).append("on the new nodes").durable
    assert [entry.text for entry in reading.sync().entries] == ["on the new nodes"]


def test_a_member_with_a_new_key_is_read_by_members_that_did_not_look_at_their_mail(
    fleet: Fleet, members: list[Member], tmp_path: Path
) -> None:
    alice, _, carol = members
    dave = Member(fleet.url, tmp_path / "dave", "dave")
    befriend([alice, carol, dave])
    name = f"team-{secrets.token_hex(4)}"
    alice.logs.create(name, nodes=fleet.urls, members=[carol.name, dave.name])
    log, reading = dave.open(name), carol.open(name)
    log.append("with the first key")
    assert reading.sync().untrue == []
    dave.client.keys.rotate(dave.mailbox, signer=True)
    assert alice.logs.settle(name).behind == {}
    log = dave.restarted(name)
    assert log.append("with the second key").durable
    synced = reading.sync()
    assert ([entry.text for entry in synced.entries], synced.untrue) == (["with the second key"], [])
    assert reading.check().sound, "what was signed with the former key still holds"
    dave.end()


# Two devices of one agent.


@pytest.fixture
def devices(members: list[Member], team: Team, tmp_path: Path) -> Iterator[tuple[BlockingLog, BlockingLog]]:
    """The log of Alice's device, and of one that was copied from it before its last update."""
    team.log.append("first")
    other = team.alice.copied(tmp_path / "copy")
    log = team.alice.open(team.name)
    log.append("second")
    yield log, other.open(team.name)
    other.end()


def test_two_messages_under_one_number_are_named_and_the_first_stays(
    team: Team, devices: tuple[BlockingLog, BlockingLog]
) -> None:
    try:
        written = devices[1].append("second of another device")
    except Conflict:
        pass
    else:
        assert "conflict" in {error.code for error in written.failures.values()}
        assert not written.durable
    reading = team.bob.open(team.name)
    reading.sync()
    assert texts(reading) == ["first", "second"]
    assert [one for one in reading.check().findings if one.fault is CheckFault.CONFLICT] == []


def test_a_copy_that_reads_first_goes_on_behind_what_the_other_wrote(
    team: Team, devices: tuple[BlockingLog, BlockingLog]
) -> None:
    devices[1].sync()
    assert devices[1].append("third").durable
    assert [entry.text for entry in devices[0].sync().entries] == ["third"]
    reading = team.bob.open(team.name)
    reading.sync()
    assert texts(reading) == ["first", "second", "third"]


def test_a_sender_that_signs_two_messages_under_one_number_is_named(team: Team) -> None:
    team.log.append("one")
    replica, edition = team.log.opened.replica, team.log.edition
    body = Update(0, b"another").encode()
    other = LogMessage(team.sender, 1, Record(0, replica.sealed(1, 0, body)).encode())
    far = placement.ranked(edition.node_ids, team.group, team.sender, 1)[-1]
    team.alice.client.run(append_to(team.log.opened, {far: [other]}))
    reading = team.bob.open(team.name)
    reading.sync()
    assert len(texts(reading)) == 1
    conflicts = [one for one in reading.check().findings if one.fault is CheckFault.CONFLICT]
    assert [(one.sender, one.seq) for one in conflicts] == [(team.alice.name, 1)]
    before = raw(reading)
    team.log.repair()
    assert raw(reading) == before, "it cannot be said which is right"


# Following.


def test_a_follower_gets_each_update_once_while_a_node_dies_and_comes_back(fleet: Fleet, team: Team) -> None:
    reading = team.bob.open(team.name)
    got: list[str] = []
    listening = threading.Event()

    def follow() -> None:
        for batch in reading.batches():
            listening.set()
            got.extend(entry.text for entry in batch)
            if "end" in got:
                return

    follower = threading.Thread(target=follow)
    follower.start()
    assert listening.wait(10)
    assert team.log.append(*LINES[:20]).durable
    with fleet.without(2):
        for line in LINES[20:30]:
            assert team.log.append(line).durable
    team.log.append(*LINES[30:40])
    team.log.append("end")
    follower.join(15)
    assert sorted(got) == sorted([*LINES[:40], "end"])
    assert reading.vector[team.sender] == 41


def test_a_message_under_a_key_that_does_not_come_keeps_no_follower_busy(fleet: Fleet, team: Team) -> None:
    team.log.append("true")
    replica = team.log.opened.replica
    with replica.database.transaction() as tx:
        seq = replica.next_seq(tx, 1)
        place = GroupPlace(team.group, team.sender, seq, 0)
        body = Update(0, b"under no key").encode()
        sealed = group_sealing.seal(place, 9, EpochKey.generate(), body, replica.logs.sign)
        tx.write("add_log_own", seq, 0, sealed, b"", b"")
    team.log.deliver()
    trips: list[Trip] = []
    got: list[str] = []
    with Client(fleet.url, identity=team.bob.mailbox, observer=trips.append) as client:
        logs = BlockingLogs(client, team.bob.mailbox)
        logs.list()
        batches, end = logs.open(team.name).batches(), time.monotonic() + 2.5
        for batch in batches:
            got += [entry.text for entry in batch]
            if time.monotonic() > end:
                break
        batches.close()
    assert got == ["true"]
    assert len(trips) < 20


# Blocking and awaited.


async def test_awaited_verbs_do_what_the_blocking_ones_do(fleet: Fleet, members: list[Member], tmp_path: Path) -> None:
    alice, bob = members[:2]
    here = await asyncio.to_thread(blocking_journey, fleet, alice, bob)
    async with (
        AsyncClient(fleet.url, identity=alice.mailbox) as alices,
        AsyncClient(fleet.url, identity=bob.mailbox) as bobs,
    ):
        mine, his = AsyncLogs(alices, alice.mailbox), AsyncLogs(bobs, bob.mailbox)
        name = f"awaited-{secrets.token_hex(4)}"
        settled = await mine.create(name, nodes=fleet.urls, members=[bob.name])
        log = await mine.open(name)
        written = await log.append(*LINES)
        done = await log.compact(2)
        await his.list()
        reading = await his.open(name)
        synced = await reading.sync()
        await reading.append("by Bob")
        followed = [entry.text for entry in (await log.sync()).entries]
        checked, repair = await log.check(), await log.repair()
        storage, _ = await log.storage()
        removed = await mine.remove(name, [bob.name])
        dropped = await mine.drop(name)
        there = Journey(
            [len(settled.behind), len(settled.told.sent)],
            [len(written.entries), written.waiting],
            [done.level, done.seq, done.size, len(done.forgotten_by)],
            [synced.snapshots, len(synced.entries), len(reading.journal())],
            followed,
            [checked.sound, sorted(checked.messages.values()), len(repair.repaired), repair.left],
            [len(storage)],
            [removed.edition.epoch, len(dropped)],
        )
        log.close()
        reading.close()
    assert there == here


@dataclass
class Journey:
    """What came of each verb, as far as it is the same in any group."""

    created: list[object]
    appended: list[object]
    compacted: list[object]
    synced: list[object]
    followed: list[str]
    checked: list[object]
    stored: list[object]
    ended: list[object]


def blocking_journey(fleet: Fleet, alice: Member, bob: Member) -> Journey:
    name = f"blocking-{secrets.token_hex(4)}"
    settled = alice.logs.create(name, nodes=fleet.urls, members=[bob.name])
    log = alice.open(name)
    written, done = log.append(*LINES), log.compact(2)
    reading = bob.open(name)
    synced = reading.sync()
    reading.append("by Bob")
    followed = [entry.text for entry in log.sync().entries]
    checked, repair = log.check(), log.repair()
    storage, _ = log.storage()
    removed, dropped = alice.logs.remove(name, [bob.name]), alice.logs.drop(name)
    return Journey(
        [len(settled.behind), len(settled.told.sent)],
        [len(written.entries), written.waiting],
        [done.level, done.seq, done.size, len(done.forgotten_by)],
        [synced.snapshots, len(synced.entries), len(reading.journal())],
        followed,
        [checked.sound, sorted(checked.messages.values()), len(repair.repaired), repair.left],
        [len(storage)],
        [removed.edition.epoch, len(dropped)],
    )
