"""The log of receipts: one line each, never joined to a line that a crash cut off, and checked when it is read."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from uuid import UUID

import pytest

from angelia.envelope.receipts import Receipt, ReceiptStatus, sign_receipt
from angelia.envelope.signing import SigningPair
from angelia.errors import DiskFull
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.private_files import UnsafeFile
from angelia.mailbox.receipt_log import ReceiptLog

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
PAIR = SigningPair.generate()
RECEIPT = sign_receipt(
    Receipt(
        status=ReceiptStatus.FAILED,
        replay_key="ab" * 32,
        message_id=UUID("550e8400-e29b-41d4-a716-446655440000"),
        sender_nhi="alice",
        recipient_nhi="bob",
        time_ms=1_794_744_000_000,
        signer_id=PAIR.public.signer_id,
        reason="a line\nbreak, \x1b[2J and \u202e",
    ),
    PAIR,
)


@pytest.fixture
def log(tmp_path: Path) -> ReceiptLog:
    tmp_path.chmod(0o700)
    return ReceiptLog(tmp_path)


def test_what_is_logged_comes_back_whole_on_one_line_each(log: ReceiptLog, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        log.append([RECEIPT, RECEIPT], NOW)
    finally:
        os.umask(before)
    path = tmp_path / "receipts_2026-11-15.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes().count(b"\n") == 2
    assert log.read().receipts == (RECEIPT, RECEIPT)


def test_a_full_disk_is_told_with_the_files_path(
    log: ReceiptLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match=str(tmp_path / "receipts_2026-11-15")):
        log.append([RECEIPT], NOW)


def test_a_day_is_a_day_of_utc(log: ReceiptLog, tmp_path: Path) -> None:
    log.append([RECEIPT], datetime(2026, 11, 16, 1, tzinfo=timezone(timedelta(hours=3))))
    log.append([RECEIPT], NOW + timedelta(days=1))
    lines = {path.name: len(path.read_bytes().splitlines()) for path in tmp_path.iterdir()}
    assert lines == {"receipts_2026-11-15.jsonl": 1, "receipts_2026-11-16.jsonl": 1}
    assert len(log.read().receipts) == 2


def test_a_line_that_a_crash_cut_off_spoils_no_other(log: ReceiptLog, tmp_path: Path) -> None:
    log.append([RECEIPT], NOW)
    path = tmp_path / "receipts_2026-11-15.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:50])
    log.append([RECEIPT], NOW)
    logged = log.read()
    assert logged.receipts == (RECEIPT, RECEIPT)
    (problem,) = logged.problems
    assert "line 2" in problem.what


@pytest.mark.parametrize("line", [b"{}", b"null", b"\xff", b'{"status":"eaten"}'])
def test_a_line_that_is_no_receipt_is_named(log: ReceiptLog, tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "receipts_2026-11-15.jsonl"
    path.write_bytes(line + b"\n")
    path.chmod(0o600)
    assert len(log.read().problems) == 1


@pytest.mark.parametrize("kind", ["symlink", "pipe", "loose", "hard link"])
def test_nothing_is_appended_to_what_is_not_our_own_file(log: ReceiptLog, tmp_path: Path, kind: str) -> None:
    path, elsewhere = tmp_path / "receipts_2026-11-15.jsonl", tmp_path / "elsewhere"
    elsewhere.touch(mode=0o600)
    match kind:
        case "symlink":
            path.symlink_to(elsewhere)
        case "pipe":
            os.mkfifo(path, 0o600)
        case "loose":
            path.touch(mode=0o600)
            path.chmod(0o644)
        case "hard link":
            os.link(elsewhere, path)
    with pytest.raises(UnsafeFile):
        log.append([RECEIPT], NOW)
    assert elsewhere.read_bytes() == b""


def test_a_receipt_that_was_changed_in_the_log_is_among_the_problems(bob: Mailbox, send: Callable[..., bytes]) -> None:
    bob.receive(send(), now=NOW)
    (path,) = bob.directory.glob("receipts_*")
    good = path.read_bytes()
    changed = {**json.loads(good), "status": "read"}
    path.write_bytes(good + json.dumps(changed).encode() + b"\n")
    logged = bob.receipts()
    assert [receipt.status for receipt in logged.receipts] == [ReceiptStatus.DELIVERED]
    assert len(logged.problems) == 1


def test_receipts_of_a_pair_that_was_replaced_still_count_as_ours(bob: Mailbox, send: Callable[..., bytes]) -> None:
    bob.receive(send(), now=NOW)
    bob.key_rotation.begin(NOW, signer=True)
    bob.key_rotation.finish(NOW)
    key = bob.inbox.page().messages[0].replay_key
    read = bob.inbox.read(key, NOW).receipt
    assert read is not None
    logged = bob.receipts()
    assert [receipt.status.name for receipt in logged.receipts] == ["DELIVERED", "READ"]
    assert len({receipt.signer_id for receipt in logged.receipts}) == 2
    assert logged.problems == ()
    assert dataclasses.replace(read, reason="x") != read
