"""Mail of senders who are not allowed: remembered by name until they are, and never without a bound."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from angelia.mailbox import held_mail
from angelia.mailbox.held_mail import HeldMessage
from angelia.mailbox.mailbox import Mailbox

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def waiting(number: int, sender: str = "alice", at: datetime = NOW, token: str = "ab" * 32) -> HeldMessage:
    return HeldMessage(
        replay_key=f"{number:064x}", sender=sender, lease_token=token, kept_at=at, expires_at=at + DAY
    )  # fmt: skip


def test_what_waits_is_found_once_its_sender_is_allowed(bob: Mailbox) -> None:
    bob.allowlist.deny("alice")
    bob.held_mail.add(waiting(1))
    bob.held_mail.add(waiting(2, "mallory"))
    assert bob.held_mail.admitted(NOW) == []
    bob.allowlist.allow("alice", NOW)
    assert bob.held_mail.admitted(NOW) == [waiting(1)]
    bob.held_mail.forget(waiting(1).replay_key)
    assert bob.held_mail.admitted(NOW) == []


def test_what_comes_again_is_not_written_down_again(bob: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    bob.held_mail.add(waiting(1), waiting(2))

    def nothing_is_written() -> None:
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(bob.database, "transaction", nothing_is_written)
        bob.held_mail.add(waiting(2, token="cd" * 32), waiting(1, at=NOW + DAY))
        bob.held_mail.add()
    assert bob.held_mail.admitted(NOW) == [waiting(1), waiting(2)]


def test_what_has_expired_is_forgotten(bob: Mailbox) -> None:
    bob.held_mail.add(waiting(1))
    assert bob.held_mail.admitted(NOW + DAY) == []
    bob.held_mail.add(waiting(2, at=NOW + 2 * DAY))
    assert bob.held_mail.admitted(NOW) == [waiting(2, at=NOW + 2 * DAY)]


def test_strangers_cannot_fill_the_disk(bob: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_mail, "MOST", 3)
    for number in range(5):
        bob.held_mail.add(waiting(number, at=NOW + timedelta(seconds=number)))
    kept = {one.replay_key for one in bob.held_mail.admitted(NOW)}
    assert kept == {waiting(number).replay_key for number in (2, 3, 4)}
