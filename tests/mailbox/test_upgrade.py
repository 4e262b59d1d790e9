"""Mailboxes that an earlier release made: they open, upgrade by themselves, verify, and go on."""

from __future__ import annotations

import sqlite3
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from angelia.envelope.bundles import Link, anchor_of, follow
from angelia.envelope.times import moment
from angelia.errors import KeyStale
from angelia.mailbox import identity
from angelia.mailbox.database import FILE, SCHEMA
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.own_keys import RenewalDue

BEFORE = Path(__file__).parent.parent / "fixtures" / "before" / "home.tar.xz"
MADE = datetime(2026, 11, 17, 12, tzinfo=UTC)
NAMES = ("alice", "bob", "carol")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with tarfile.open(BEFORE) as archive:
        archive.extractall(tmp_path, filter=_ours)  # noqa: S202
    return tmp_path / "home"


def _ours(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    """With its modes, which are private, and of whoever runs the tests."""
    safe = tarfile.tar_filter(member, path)
    return safe.replace(uid=None, gid=None, uname=None, gname=None, deep=False)  # type: ignore[call-overload]


def opened(home: Path, name: str, now: datetime = MADE) -> Mailbox:
    return Mailbox(home, identity.load(home, name, lambda: ""), now)


def version(home: Path, name: str) -> int:
    connection = sqlite3.connect(home / name / "mail" / FILE)
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return int(found)


@pytest.mark.parametrize("name", NAMES)
def test_a_mailbox_of_an_earlier_release_upgrades_and_verifies(home: Path, name: str) -> None:
    assert version(home, name) == 4
    with opened(home, name) as box:
        assert box.verify() == []
        assert box.receipts().problems == ()
        for message in box.inbox.page().messages:
            assert box.inbox.read(message.replay_key, MADE).body
    assert version(home, name) == SCHEMA


@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_that_was_signed_for_a_year_is_signed_again_at_once_and_the_chain_goes_on(
    home: Path, name: str
) -> None:
    with opened(home, name) as box:
        chain = box.own_keys.chain()
        before = chain[-1].bundle
        assert moment(before.expires_at) - moment(before.issued_at) == timedelta(days=365)
        at = moment(before.issued_at) + timedelta(minutes=1)
        assert box.own_keys.renewal_due(at) is RenewalDue.SIGNATURES
        link = box.key_rotation.begin(at, kem=False)
        box.key_rotation.finish(at)
        assert link.bundle.kem_keys[0] == before.kem_keys[0]
        assert follow(anchor_of(chain[0].bundle), [*chain[1:], Link(link.bundle)]).bundle_hash == link.bundle.hash
        assert box.own_keys.renewal_due(at) is None


def test_anothers_bundle_that_was_signed_for_a_year_ends_after_a_month(home: Path) -> None:
    with opened(home, "alice") as box:
        known = box.pinned_keys.bundle("bob", MADE, max_age=None)
        assert known is not None
        end = moment(known.bundle.issued_at) + timedelta(days=30)
        box.outbox.seal(known.bundle, b"in time", now=end - timedelta(seconds=1))
        with pytest.raises(KeyStale, match="expired"):
            box.outbox.seal(known.bundle, b"too late", now=end)


@pytest.mark.parametrize("name", NAMES)
def test_an_emergency_replaces_the_local_key_of_an_earlier_release(home: Path, name: str) -> None:
    with opened(home, name) as box:
        old = box.identity.unlocked.seeds["local"]
        bodies = [box.inbox.read(one.replay_key, MADE).body for one in box.inbox.page().messages]
        box.key_rotation.begin(MADE, emergency=True, signer=True)
        box.key_rotation.finish(MADE)
    with opened(home, name) as again:
        assert old not in again.identity.unlocked.seeds.values()
        assert [again.inbox.read(one.replay_key, MADE).body for one in again.inbox.page().messages] == bodies
