"""Group logs from the command line: what a person sees, and the exit code that a script sees."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from angelia.client.log_verbs import AgentLogs
from angelia.errors import NotDurable
from angelia.grouplog.model.frames import LogMessage
from angelia.grouplog.model.ids import sender_id
from cli.running import PROGRAM, Angelia, Ended


@dataclass
class Member:
    """An agent on a real server, with a home of its own."""

    name: str
    run: Angelia

    def __call__(self, *argv: str, **how: object) -> Ended:
        return self.run("log", *argv, **how)

    def does(self, *argv: str, **how: object) -> str:
        ended = self(*argv, **how)
        assert ended.code == 0, f"{argv}: {ended.err}"
        return ended.out


@pytest.fixture
def member(live: str, person: Callable[[str], Angelia]) -> Callable[[str], Member]:
    def make(name: str) -> Member:
        handle = f"{name}-{secrets.token_hex(3)}"
        command = person(handle)
        registered = command("agent", "new", handle, "--register")
        assert registered.code == 0, registered.err
        return Member(handle, command)

    return make


@pytest.fixture
def alice(member: Callable[[str], Member]) -> Member:
    return member("alice")


@pytest.fixture
def bob(member: Callable[[str], Member], alice: Member) -> Member:
    """Opens alice's mail, by which it becomes a member."""
    made = member("bob")
    assert made.run("mail", "allow", alice.name).code == 0
    return made


@pytest.fixture
def team(alice: Member, bob: Member) -> tuple[Member, Member]:
    alice.does("create", "team", "--member", bob.name)
    return alice, bob


def test_a_group_is_made_on_the_own_server_and_said_to_be_on_one_node_alone(live: str, alice: Member) -> None:
    made = alice("create", "team")
    assert made.code == 0
    assert re.search(r"^group    [1-9A-Za-z]{32,44}$", made.out, re.MULTILINE)
    assert f"members  {alice.name} (owner)\n" in made.out
    assert f"nodes    {live}\n" in made.out
    assert "each update is on one node alone" in made.err
    assert re.fullmatch(r"[1-9A-Za-z]{32,44}\n", alice.does("create", "other", "-q"))


def test_a_name_is_used_once(alice: Member) -> None:
    alice.does("create", "team")
    again = alice("create", "team")
    assert (again.code, "(already_exists)" in again.err) == (1, True)


def test_what_one_member_writes_the_other_reads(team: tuple[Member, Member]) -> None:
    alice, bob = team
    assert alice.does("append", "team", "the build is green") == "wrote update 1 of team, sealed, on 1 node or more\n"
    assert alice.does("append", "team", "-q", "again") == "2\n"
    read = bob.does("read", "team")
    assert re.fullmatch(
        rf"\d\d:\d\d:\d\dZ       1  {alice.name} +the build is green\n\d\d:\d\d:\d\dZ       2  {alice.name} +again\n",
        read,
    )
    (first, _) = map(json.loads, bob.does("read", "team", "--json").splitlines())
    assert (first["agent"], first["seq"], first["body"]) == (alice.name, 1, "the build is green")
    assert bob.does("read", "team", "-n", "1").endswith("again\n")


def test_lines_of_stdin_are_updates_and_hostile_text_sits_still(team: tuple[Member, Member]) -> None:
    alice, bob = team
    alice.does("append", "team", "--lines", stdin=b"one\n\x1b[2Jtwo\n<script>\n")
    assert [line.split(maxsplit=3)[3] for line in bob.does("read", "team").splitlines()] == [
        "one",
        r"\x1b[2Jtwo",
        "<script>",
    ]


def test_a_member_finds_its_groups_in_its_mail(team: tuple[Member, Member]) -> None:
    _, bob = team
    assert re.search(r"^[1-9A-Za-z]{12}  team +2 +1  member$", bob.does("list"), re.MULTILINE)


def test_a_group_that_is_not_known_is_not_found_and_the_hint_works(alice: Member) -> None:
    for verb in ("append", "read", "vector", "compact", "verify", "repair", "storage", "members", "nodes"):
        ended = alice(verb, "nowhere", *(["x"] if verb == "append" else []))
        assert (ended.code, "(no_group)" in ended.err) == (8, True), verb
    assert "`angelia log list` shows your groups" in ended.err


def test_follow_prints_what_comes_also_of_the_agent_itself_until_ctrl_c(
    team: tuple[Member, Member], shell: Path
) -> None:
    alice, bob = team
    alice.does("append", "team", "--lines", stdin=b"one\ntwo\nthree\n")
    child = subprocess.Popen(
        [*PROGRAM, "log", "follow", "team", "-n", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"ANGELIA_HOME": str(shell / f"home-{bob.name}")},
    )
    assert child.stdout is not None
    try:
        heard = [child.stdout.readline() for _ in range(2)]
        alice.does("append", "team", "four")
        heard.append(child.stdout.readline())
        bob.does("append", "team", "five")
        heard.append(child.stdout.readline())
        child.send_signal(signal.SIGINT)
        rest, err = child.communicate(timeout=20)
    finally:
        child.kill()
    assert [line.split()[-1] for line in heard] == ["two", "three", "four", "five"]
    assert (child.returncode, rest, err) == (130, "", "\nstopped\n")


def test_the_vector_shows_what_is_held_and_what_snapshots_replaced(team: tuple[Member, Member]) -> None:
    alice, bob = team
    nothing = bob("vector", "team")
    assert (nothing.out, "nothing of team has come yet" in nothing.err) == ("", True)
    alice.does("append", "team", "--lines", stdin=b"1\n2\n3\n")
    bob.does("read", "team")
    head, row = bob.does("vector", "team").splitlines()
    assert head == "SENDER            HELD TO  ALSO HELD  ASKS FOR  FLOOR"
    assert re.fullmatch(r"[0-9a-f]{16}        3  -          -         -", row)
    taken = alice.does("compact", "team").splitlines()
    assert re.fullmatch(r"took snapshot 4 of level 1: [\d,]+ bytes, confirmed by 1 node", taken[0])
    assert taken[1] == "1 node forgot what it replaces"
    bob.does("read", "team")
    assert bob.does("vector", "team").splitlines()[1].endswith("3 (level 1)")
    (record,) = map(json.loads, bob.does("vector", "team", "--json").splitlines())
    assert (record["held_to"], record["floor"], record["floor_level"]) == (4, 3, 1)


def test_a_sound_group_is_said_to_be_sound(team: tuple[Member, Member]) -> None:
    alice, bob = team
    alice.does("append", "team", "x")
    assert bob.does("verify", "team") == "1 record on 1 node is sound\n"
    repaired = bob("repair", "team")
    assert (repaired.code, repaired.out) == (0, "")
    assert "nothing had to be stored again" in repaired.err


def test_after_twenty_updates_a_snapshot_is_taken_by_the_member_whose_turn_it_is(alice: Member) -> None:
    alice.does("create", "team")
    assert "snapshot" not in alice("append", "team", "--lines", stdin=b"x\n" * 19).err
    assert "took snapshot 21 of level 1, which was due" in alice("append", "team", "the twentieth").err
    assert alice.does("verify", "team") == "1 record on 1 node is sound\n"
    assert len(alice.does("read", "team").splitlines()) == 20


def test_members_come_and_go(team: tuple[Member, Member], member: Callable[[str], Member]) -> None:
    alice, bob = team
    alice.does("append", "team", "before carol")
    carol = member("carol")
    assert carol.run("mail", "allow", alice.name).code == 0
    added = alice("members", "team", "--add", carol.name)
    assert (added.code, added.out) == (0, f"added {carol.name} to team\n")
    assert "took snapshot 2" in added.err
    assert carol.does("read", "team").endswith("before carol\n"), "from the snapshot"
    refused = bob("members", "team", "--remove", carol.name, "--yes")
    assert (refused.code, "which made team, changes it" in refused.err) == (5, True)
    unasked = alice("members", "team", "--remove", carol.name)
    assert (unasked.code, "needs a yes" in unasked.err) == (2, True)
    alice.does("members", "team", "--remove", carol.name, "--yes")
    alice.does("append", "team", "without carol")
    after = carol("read", "team")
    assert (after.code, "without carol" in after.out, "(not_member)" in after.err) == (7, False, True)
    assert [line.split()[0] for line in alice.does("members", "team").splitlines()] == ["AGENT", alice.name, bob.name]


def test_a_compaction_that_is_not_durable_forgets_nothing_and_says_so(
    team: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch, live: str
) -> None:
    alice, _ = team
    alice.does("append", "team", "x")
    monkeypatch.setattr("angelia.client.log_compacting._store_whole", _stored_nowhere)
    ended = alice("compact", "team")
    assert (ended.code, "(not_durable)" in ended.err) == (1, True)
    assert "nothing was forgotten" in ended.err
    monkeypatch.undo()
    assert NotDurable.code == "not_durable"


def _stored_nowhere(*_: object):  # type: ignore[no-untyped-def]
    yield from ()
    return []


def test_storage_export_and_import_say_what_they_did(team: tuple[Member, Member], tmp_path: Path) -> None:
    alice, bob = team
    alice.does("append", "team", "x")
    (record,) = map(json.loads, bob.does("storage", "team", "--json").splitlines())
    assert (record["snapshots"], record["corrupt"], record["quota_bytes"]) == (0, [], 2 << 30)
    exported = bob.does("export", "team", str(tmp_path / "export"))
    assert re.fullmatch(r"wrote \S+\.parquet, 1 row\n", exported)
    edition = json.loads(alice.does("list", "--json"))
    old = sender_id(b"\0" * 32, b"\0" * 32, 1)
    frames = b"".join(LogMessage(old, seq, b"ciphertext %d" % seq).encode() for seq in range(1, 2_501))
    (tmp_path / "old.frames").write_bytes(frames)
    for _ in range(2):
        assert alice.does("import", "team", str(tmp_path / "old.frames")).endswith(" has 2,500 rows of the file\n")
    assert bob("import", "team", str(tmp_path / "old.frames")).code == 1, "only the owner imports"
    assert edition["name"] == "team"


def test_a_group_is_dropped_by_its_name_and_for_good(team: tuple[Member, Member]) -> None:
    alice, bob = team
    assert alice("drop", "team").code == 2, "it was not confirmed"
    assert alice("drop", "team", "--dry-run").code == 0
    assert alice.does("append", "team", "x")
    assert alice.does("drop", "team", "--yes") == "dropped team with all its messages on 1 node\n"
    gone = bob("append", "team", "y")
    assert (gone.code, "(group_dropped)" in gone.err) == (1, True)
    assert alice("read", "team").code == 8


def test_a_group_is_forgotten_here_and_comes_back_with_the_next_edition(team: tuple[Member, Member]) -> None:
    alice, bob = team
    alice.does("append", "team", "x")
    bob.does("read", "team")
    assert bob.does("forget", "team", "--yes") == "forgot team, its keys and what this device has of it\n"
    assert bob("vector", "team").code == 8
    alice.does("members", "team", "--refresh")
    assert bob.does("read", "team").endswith("x\n")


def test_every_verb_of_the_namespace_has_a_command() -> None:
    verbs = {name for name in vars(AgentLogs) if not name.startswith("_")}
    assert verbs == {"create", "list", "find", "settle", "add", "remove", "replace_nodes", "drop", "forget"}
