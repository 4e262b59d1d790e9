"""kill -9 before every step that touches the disk: nothing is lost, nothing happens twice, no key goes missing."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from angelia.envelope import sealing, wire
from angelia.envelope.bundles import Bundle, Link, anchor_of, check_bundle, follow
from angelia.envelope.refusals import Replayed, UnknownKey
from angelia.envelope.sealing import Letter
from angelia.envelope.times import unix_ms
from angelia.mailbox import identity, keyfile
from angelia.mailbox.database import FILE
from angelia.mailbox.inbox import Opened, ReadState
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.outbox_message import OutboxStatus
from stolen_mailbox import CHANNEL, fill, opens, sealed_rows

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
SUITES = 0b1011
CRASHING = Path(__file__).with_name("crashing.py")

Send = Callable[..., bytes]
Crash = Callable[..., Iterator[Path]]


@pytest.fixture
def crash(home: Path, alice: Mailbox, bob: Mailbox, tmp_path: Path) -> Crash:
    """Runs a scenario with a kill at each of its steps; the homes that are left, the last of them unharmed."""

    def run(scenario: str, argument: object = "", *, least: int) -> Iterator[Path]:
        for box in (alice, bob):
            box.close()
        command = [sys.executable, CRASHING, scenario, home, tmp_path / "runs", str(argument)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert ran.returncode == 0, ran.stderr
        runs = int(ran.stdout)
        assert runs > least, "the scenario has fewer steps than it should have"
        return (tmp_path / "runs" / str(step) for step in range(runs))

    return run


def opened(home: Path, name: str = "bob") -> Mailbox:
    return Mailbox(home, identity.load(home, name, lambda: ""), NOW)


def bodies(box: Mailbox) -> list[bytes]:
    return [box.inbox.read(message.replay_key, NOW).body for message in box.inbox.page().messages]


def refused(box: Mailbox, content: bytes) -> bool:
    try:
        box.receive(content, now=NOW)
    except Replayed:
        return True
    return False


def sealed_to(box: Mailbox, sender: Mailbox, bundle: Bundle) -> bytes:
    """An envelope of `sender` to the best key of a bundle, whatever the sender has pinned."""
    key = bundle.best_key(unix_ms(NOW))
    assert key is not None
    letter = Letter(
        recipient=bundle.agent_nhi, key=key, body=b"to this bundle", message_id=uuid.uuid4(), created_at=unix_ms(NOW)
    )
    return sealing.seal(letter, sender.identity.handle, sender.identity.pair).wire


@pytest.mark.parametrize("one_time", [False, True])
def test_a_message_is_neither_lost_nor_opened_twice(
    crash: Crash, bob: Mailbox, send: Send, tmp_path: Path, one_time: bool
) -> None:
    (key,) = bob.own_keys.make_one_time_keys(1, NOW)
    sealed = send(one_time_key=key if one_time else None)
    (tmp_path / "sealed").write_bytes(sealed)
    was_there = []
    for home in crash("receive", tmp_path / "sealed", least=9):
        with opened(home) as box:
            was_there.append(refused(box, sealed))
            assert bodies(box) == [b"hello"]
            assert refused(box, sealed)
            assert [(message.sender, message.acked_at) for message in box.inbox.page().messages] == [("alice", None)]
            assert box.verify() == []
            assert box.receipts().problems == ()
    assert was_there == sorted(was_there)  # once it was taken it stays taken
    assert {False, True} <= set(was_there)


def test_messages_of_one_transaction_are_all_there_or_all_come_again(
    crash: Crash, bob: Mailbox, send: Send, tmp_path: Path
) -> None:
    (tmp_path / "sealed").mkdir()
    contents = [send(body=b"one"), send(body=b"two")]
    for content in contents:
        (tmp_path / "sealed" / wire.decode(content).replay_key).write_bytes(content)
    for home in crash("receive_two", tmp_path / "sealed", least=11):
        with opened(home) as box:
            outcomes = box.receive_many(contents, now=NOW)
            assert {type(one) for one in outcomes} in ({Opened}, {Replayed})
            assert sorted(bodies(box)) == [b"one", b"two"]


def test_reading_gives_the_receipt_before_it_counts_as_read(crash: Crash, bob: Mailbox, send: Send) -> None:
    key = bob.receive(send(), now=NOW).message.replay_key
    for home in crash("read", key, least=3):
        with opened(home) as box:
            given = [receipt.status.name for receipt in box.receipts().receipts]
            if box.inbox.message(key).status is ReadState.READ:
                assert "READ" in given
            assert box.inbox.read(key, NOW).body == b"hello"


def test_what_was_sealed_is_whole_or_was_never_there(crash: Crash) -> None:
    counts = []
    for home in crash("seal", "a letter", least=5):
        with opened(home, "alice") as sender, opened(home) as recipient:
            rows = sender.outbox.page()
            counts.append(len(rows))
            for row in rows:
                content = sender.outbox.wire(row.replay_key)
                assert recipient.receive(content, now=NOW).body == b"a letter"
                assert row.resealable
            assert sender.verify() == []
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 1)


def test_a_message_is_sealed_again_whole_or_not_at_all(crash: Crash, alice: Mailbox, bob: Mailbox) -> None:
    known = alice.pinned_keys.bundle("bob", NOW)
    assert known is not None
    old = alice.outbox.seal(known.bundle, b"again", now=NOW).replay_key
    for home in crash("reseal", old, least=5):
        with opened(home, "alice") as sender:
            rows = {row.replay_key: row for row in sender.outbox.page()}
            alive = [row for row in rows.values() if row.resealable]
            assert len(alive) == 1
            assert rows[old].status is (OutboxStatus.STORED if len(rows) == 1 else OutboxStatus.RESEALED)


@pytest.mark.parametrize("what", ["kem", "signer", "kem signer"])
def test_a_rotation_loses_no_key_wherever_it_stops(
    crash: Crash, alice: Mailbox, bob: Mailbox, send: Send, what: str
) -> None:
    sealed = send(body=b"to the old key")
    before = bob.own_keys.newest()
    assert before is not None
    states = set()
    for home in crash("rotate", what, least=14):
        with opened(home) as box, opened(home, "alice") as sender:
            assert box.receive(sealed, now=NOW).body == b"to the old key"
            pending = box.key_rotation.pending()
            states.add((pending is not None, len(box.own_keys.chain())))
            assert pending is None or not pending.accepted  # what a server took was completed by opening the mailbox
            if pending is not None:
                published = sealed_to(box, sender, pending.link.bundle)
                assert box.receive(published, now=NOW).body == b"to this bundle"
            if len(box.own_keys.chain()) == 1:
                box.key_rotation.begin(NOW, kem="kem" in what, signer="signer" in what, suites=SUITES)
                box.key_rotation.finish(NOW)
            settled(box, before)
            assert box.receive(sealed_to(box, sender, newest(box)), now=NOW).body == b"to this bundle"
        with opened(home) as again:
            settled(again, before)
        assert not list((home / "bob").glob(".*"))  # half a key file holds seeds too
    assert {(False, 1), (True, 1), (False, 2)} == states


def newest(box: Mailbox) -> Bundle:
    link = box.own_keys.newest()
    assert link is not None
    return link.bundle


def settled(box: Mailbox, before: Link) -> None:
    """One step was made, others can follow it, and this agent signs as its newest bundle says."""
    chain = box.own_keys.chain()
    assert chain[0] == before
    reached = follow(anchor_of(before.bundle), chain[1:])
    assert reached.bundle_version == 2
    assert reached.signer.signer_id == box.identity.pair.public.signer_id
    assert box.key_rotation.pending() is None
    assert not any(name.startswith("next.") for name in box.identity.unlocked.seeds)


def test_an_emergency_is_complete_or_can_be_completed_and_then_nothing_old_is_left(
    crash: Crash, alice: Mailbox, bob: Mailbox, send: Send
) -> None:
    channel_key = fill(bob, send)
    sealed, before = send(), bob.own_keys.newest()
    stolen, rows = bob.identity.unlocked.seeds, list(sealed_rows(bob))
    assert before is not None
    under_two_keys = 0
    for home in crash("rotate", "emergency signer", least=20):
        under_two_keys += "next.local" in identity.load(home, "bob", lambda: "").unlocked.seeds
        with opened(home) as box:
            (kept,) = bodies(box)
            assert kept == b"kept in the inbox"
            assert box.channels.key(CHANNEL, channel_key.key_id, NOW) == channel_key
            if len(box.own_keys.chain()) == 1:
                if box.key_rotation.pending() is None:
                    box.key_rotation.begin(NOW, emergency=True, signer=True, suites=SUITES)
                box.key_rotation.finish(NOW)
            settled(box, before)
            with pytest.raises(UnknownKey):
                box.receive(sealed, now=NOW)
            for name in ("xwing", "local", "ed25519"):
                assert stolen[name] not in box.identity.unlocked.seeds.values()
            assert not any(opens(stolen["local"], *row) for row in sealed_rows(box))
            files = [path.read_bytes() for path in box.directory.glob(f"{FILE}*")]
            assert not any(content in file for *_, content in rows for file in files)
            assert bodies(box) == [b"kept in the inbox"]
    assert under_two_keys


def test_an_emergency_that_waits_for_a_rotation_is_not_forgotten_once_it_was_written_down(
    crash: Crash, bob: Mailbox, send: Send
) -> None:
    fill(bob, send)
    bob.key_rotation.begin(NOW)
    stolen, noted = bob.identity.unlocked.seeds, []
    for home in crash("wait", least=20):
        with opened(home) as box:
            plan = box.key_rotation.unconfirmed_plan()
            assert plan is not None
            noted.append(plan.emergency)
            assert bodies(box) == [b"kept in the inbox"]
            if box.key_rotation.queued_emergency() is not None and box.key_rotation.pending() is not None:
                box.key_rotation.finish(NOW)
            if plan.emergency:
                box.key_rotation.begin(NOW, kem=False)
                box.key_rotation.finish(NOW)
                assert box.key_rotation.unconfirmed_plan() is None
                assert set(stolen.values()).isdisjoint(box.identity.unlocked.seeds.values())
                assert not any(opens(stolen["local"], *row) for row in sealed_rows(box))
                assert box.verify() == []
    assert noted == sorted(noted)
    assert {False, True} == set(noted)


def test_an_abandoned_rotation_leaves_working_keys_wherever_it_stops(crash: Crash, bob: Mailbox, send: Send) -> None:
    sealed, before = send(), bob.own_keys.newest()
    assert before is not None
    for home in crash("abandon", least=12):
        with opened(home) as box:
            box.key_rotation.abandon()
            assert box.own_keys.chain() == [before]
            assert box.receive(sealed, now=NOW).body == b"hello"
            box.key_rotation.begin(NOW, signer=True)
            box.key_rotation.finish(NOW)
            settled(box, before)


def test_a_first_bundle_can_be_asked_for_again(crash: Crash, home: Path) -> None:
    identity.create(home, "carol")
    for left in crash("begin_again", least=2):
        with opened(left, "carol") as box:
            bundle = box.own_keys.first_bundle(NOW, SUITES).bundle
            check_bundle(bundle)
            assert box.key_rotation.finish(NOW).bundle == bundle
            assert [entry.key.kind.name for entry in bundle.kem_keys] == ["XWING", "ML_KEM_768"]


@pytest.mark.parametrize("older", [False, True])
def test_a_mailbox_that_was_being_made_is_made_by_the_next_who_opens_it(crash: Crash, home: Path, older: bool) -> None:
    made = identity.create(home, "carol")
    if older:  # its key file is completed on the way
        seeds = {"ed25519": made.unlocked.seeds["ed25519"]}
        (home / "carol" / "key").write_bytes(keyfile.encode(seeds, None))
    for left in crash("open_first", least=8):
        with opened(left, "carol") as box:
            assert box.identity.public_key == made.public_key
            assert box.own_keys.first_bundle(NOW).bundle.bundle_version == 1
            assert box.verify() == []


def test_a_migration_that_was_killed_goes_on(crash: Crash, home: Path) -> None:
    mailbox = home / "runtime" / "mailbox"
    (mailbox / "inbox").mkdir(parents=True)
    header = {"sender_fp": "a", "recipient_fp": "b", "msg_id": "id-1", "timestamp": "2026-02-12T10:00:00Z"}
    (mailbox / "inbox" / "id-1.json").write_text(json.dumps({"header": header, "ciphertext": "", "signature": ""}))
    ids = [f"id-{number}" for number in range(2_100)]
    (mailbox / "seen_cache.json").write_text(json.dumps(ids))
    for left in crash("migrate", least=7):
        with opened(left) as box:
            box.migrate(left / "runtime", NOW + timedelta(hours=1))
            with box.database.transaction() as tx:
                assert tx.execute("SELECT count(*) FROM legacy_msg_ids").fetchone() == (2_099,)
                assert tx.execute("SELECT count(*) FROM replay_state").fetchone() == (1,)
        copies = sorted(path.name for path in (left / "runtime" / "mailbox").glob("*backup*"))
        assert copies == ["inbox_backup_v0", "seen_cache.json.backup"]
