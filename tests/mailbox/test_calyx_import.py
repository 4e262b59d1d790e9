"""Migration from Calyx: what it had seen stays seen, its files stay as they are, and a second run changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import pytest

from angelia.envelope.refusals import Replayed
from angelia.errors import InvalidArgument, NotFound
from angelia.mailbox import calyx_import
from angelia.mailbox.database import MailboxDatabase, unstamp
from angelia.mailbox.mailbox import Mailbox

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)

Write = Callable[[object], None]


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    for name in ("inbox", "outbox"):
        (tmp_path / "runtime" / "mailbox" / name).mkdir(parents=True)
    return tmp_path / "runtime"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[MailboxDatabase]:
    (tmp_path / "mail").mkdir(mode=0o700)
    made = MailboxDatabase(tmp_path / "mail")
    yield made
    made.close()


def envelope(msg_id: str, version: str | None = "0.1", **header: object) -> dict[str, Any]:
    made: dict[str, Any] = {
        "header": {
            "sender_fp": "c2VuZGVyIG9mIGNhbHl4IQ",
            "recipient_fp": "cmVjaXBpZW50IG9mIGNhbA",
            "msg_id": msg_id,
            "timestamp": "2026-02-12T10:00:00Z",
            **header,
        },
        "ciphertext": "AAAA",
        "signature": "BBBB",
    }
    return made if version is None else {"protocol_version": version, **made}


def store(runtime: Path, one: dict[str, Any], name: str | None = None, folder: str = "inbox") -> Path:
    path = runtime / "mailbox" / folder / (name or f"{one['header']['msg_id']}.json")
    path.write_text(json.dumps(one, indent=2))
    return path


def seen(runtime: Path, msg_ids: object) -> Path:
    path = runtime / "mailbox" / "seen_cache.json"
    path.write_text(json.dumps(msg_ids))
    return path


def rows(database: MailboxDatabase, table: str) -> list[tuple[Any, ...]]:
    with database.transaction() as tx:
        return tx.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()  # noqa: S608


def test_the_old_rule_hashes_sorted_compact_json_in_nfc() -> None:
    made = envelope("a", subject="Gru\u0308n \u20ac")
    text = (
        '{"ciphertext":"AAAA","header":{"msg_id":"a","recipient_fp":"cmVjaXBpZW50IG9mIGNhbA",'
        '"sender_fp":"c2VuZGVyIG9mIGNhbHl4IQ","subject":"Grün €","timestamp":"2026-02-12T10:00:00Z"},'
        '"protocol_version":"0.1","signature":"BBBB"}'
    )
    assert calyx_import.old_replay_key(made) == hashlib.sha256(text.encode()).hexdigest()
    assert calyx_import.old_replay_key(envelope("a", None)) != calyx_import.old_replay_key(envelope("a"))
    for bad in (envelope("a", "0.2"), envelope("a", size=1.5), envelope("a", deep=[{"x": 0.1}])):
        with pytest.raises(InvalidArgument):
            calyx_import.old_replay_key(bad)


def test_ids_with_an_envelope_become_rows_and_the_others_are_denied_by_id(
    runtime: Path, database: MailboxDatabase
) -> None:
    old, new = envelope("old", None), envelope("new")
    store(runtime, old)
    store(runtime, new, f"{calyx_import.old_replay_key(new)}.json", folder="outbox")
    seen(runtime, ["old", "new", "gone", "old"])
    report = calyx_import.migrate(database, runtime, NOW)
    assert (report.ids, report.with_envelope, report.without_envelope, report.already_there) == (3, 2, 1, 0)
    stored = {row[0]: row for row in rows(database, "replay_state")}
    assert set(stored) == {calyx_import.old_replay_key(old), calyx_import.old_replay_key(new)}
    _, msg_id, sender, recipient, seen_at, timestamp, expires, name = stored[calyx_import.old_replay_key(old)]
    assert (msg_id, sender, recipient, name) == ("old", "c2VuZGVyIG9mIGNhbHl4IQ", "cmVjaXBpZW50IG9mIGNhbA", None)
    assert unstamp(seen_at) == NOW
    assert unstamp(expires) - unstamp(timestamp) == timedelta(minutes=5)
    assert [row[0] for row in rows(database, "legacy_msg_ids")] == ["gone"]


def test_a_second_run_changes_nothing_and_copies_nothing(runtime: Path, database: MailboxDatabase) -> None:
    store(runtime, envelope("a"))
    seen(runtime, ["a", "b"])
    first = calyx_import.migrate(database, runtime, NOW)
    before = rows(database, "replay_state"), rows(database, "legacy_msg_ids"), sorted(runtime.rglob("*"))
    again = calyx_import.migrate(database, runtime, NOW + timedelta(days=3))
    assert (again.with_envelope, again.without_envelope, again.already_there) == (0, 0, 2)
    assert len(first.backups) == 3
    assert again.backups == ()
    assert (rows(database, "replay_state"), rows(database, "legacy_msg_ids"), sorted(runtime.rglob("*"))) == before


def test_what_was_copied_is_never_overwritten(runtime: Path, database: MailboxDatabase) -> None:
    for number in range(3):
        seen(runtime, [f"id-{number}"])
        store(runtime, envelope(f"id-{number}"))
        calyx_import.migrate(database, runtime, NOW)
    mailbox = runtime / "mailbox"
    copies = [mailbox / f"seen_cache.json.backup{suffix}" for suffix in ("", ".1", ".2")]
    assert [json.loads(path.read_text()) for path in copies] == [["id-0"], ["id-1"], ["id-2"]]
    assert [len(list((mailbox / f"inbox_backup_v0{suffix}").iterdir())) for suffix in ("", ".1", ".2")] == [1, 2, 3]
    assert (mailbox / "outbox_backup_v0").is_dir()
    assert not (mailbox / "outbox_backup_v0.1").exists()


def test_copies_are_private_from_birth(
    runtime: Path, database: MailboxDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(runtime, envelope("a"))
    seen(runtime, ["a"])
    modes: list[int] = []
    copying = calyx_import.shutil.copyfileobj

    def watched(source: IO[bytes], target: IO[bytes]) -> None:
        modes.append(stat.S_IMODE(os.fstat(target.fileno()).st_mode))
        copying(source, target)

    monkeypatch.setattr(calyx_import.shutil, "copyfileobj", watched)
    before = os.umask(0)
    try:
        calyx_import.migrate(database, runtime, NOW)
    finally:
        os.umask(before)
    assert modes == [0o600, 0o600]


def test_the_original_files_stay_as_they_are(runtime: Path, database: MailboxDatabase) -> None:
    cache, letter = seen(runtime, ["a"]), store(runtime, envelope("a"))
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in (cache, letter)]
    calyx_import.migrate(database, runtime, NOW)
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in (cache, letter)] == before


@pytest.mark.parametrize(
    "content", ["", "{", "nul", "[" * 100_000, '{"a": 1}', '"a"', "[1]", "[null]", '[""]', '["a\\u001b"]', "[[]]"]
)
def test_a_cache_that_is_no_list_of_ids_is_refused_and_nothing_is_done(
    runtime: Path, database: MailboxDatabase, content: str
) -> None:
    (runtime / "mailbox" / "seen_cache.json").write_text(content)
    with pytest.raises(InvalidArgument):
        calyx_import.migrate(database, runtime, NOW)
    assert rows(database, "legacy_msg_ids") == []
    assert not (runtime / "mailbox" / "seen_cache.json.backup").exists()


def test_the_database_of_a_version_that_had_no_cache_is_not_taken_over_and_that_is_said(
    runtime: Path, database: MailboxDatabase
) -> None:
    store(runtime, envelope("a"))
    old = runtime / "mailbox" / "replay_state.db"
    old.touch()
    done = calyx_import.migrate(database, runtime, NOW)
    assert done.ids == 0
    assert [str(problem) for problem in done.problems] == [f"{old} is the memory of version 0.1, and is not taken over"]
    with pytest.raises(NotFound):
        calyx_import.migrate(database, runtime / "elsewhere", NOW)


@pytest.mark.parametrize(
    "spoiled",
    [
        b"{",
        b"[]",
        b"\xff",
        b'{"header": 3}',
        json.dumps(envelope("a", timestamp="yesterday")).encode(),
        json.dumps(envelope("a", timestamp="2026-02-30T10:00:00Z")).encode(),
        json.dumps(envelope("a", timestamp="9999-12-31T23:59:59Z")).encode(),
        json.dumps(envelope("a", sender_fp=None)).encode(),
        json.dumps(envelope("a", "9.9")).encode(),
        json.dumps(envelope("a", subject="\ud800")).encode(),
    ],
)
def test_an_envelope_that_cannot_be_read_is_named_and_its_id_is_denied(
    runtime: Path, database: MailboxDatabase, spoiled: bytes
) -> None:
    (runtime / "mailbox" / "inbox" / "a.json").write_bytes(spoiled)
    seen(runtime, ["a"])
    report = calyx_import.migrate(database, runtime, NOW)
    assert (report.with_envelope, report.without_envelope, len(report.problems)) == (0, 1, 1)


def test_links_and_pipes_among_the_envelopes_are_not_followed(
    runtime: Path, database: MailboxDatabase, tmp_path: Path
) -> None:
    (tmp_path / "outside.json").write_text(json.dumps(envelope("a")))
    (runtime / "mailbox" / "inbox" / "link.json").symlink_to(tmp_path / "outside.json")
    os.mkfifo(runtime / "mailbox" / "inbox" / "pipe.json")
    seen(runtime, ["a"])
    report = calyx_import.migrate(database, runtime, NOW)
    assert (report.without_envelope, len(report.problems)) == (1, 2)
    assert list((runtime / "mailbox" / "inbox_backup_v0").iterdir()) == []


def test_a_link_to_a_file_or_a_pipe_in_the_place_of_a_folder_is_left_out(
    runtime: Path, database: MailboxDatabase, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").write_text("not Calyx's")
    for name in ("inbox", "outbox"):
        (runtime / "mailbox" / name).rmdir()
    (runtime / "mailbox" / "inbox").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(runtime / "mailbox" / "outbox")

    assert calyx_import.migrate(database, runtime, NOW).backups == ()


def test_ten_thousand_ids_go_over_in_transactions_of_a_thousand(runtime: Path, database: MailboxDatabase) -> None:
    ids = [str(uuid.UUID(int=number)) for number in range(10_000)]
    seen(runtime, ids)
    commits = 0
    commit = database._commit

    def counted(connection: Any) -> None:
        nonlocal commits
        commits += 1
        commit(connection)

    database._commit = counted  # type: ignore[method-assign]
    report = calyx_import.migrate(database, runtime, NOW)
    assert (report.ids, report.without_envelope, commits) == (10_000, 10_000, 10)


def test_a_migration_that_was_interrupted_goes_on_where_it_stopped(
    runtime: Path, database: MailboxDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        store(runtime, envelope(f"id-{number}"))
    seen(runtime, [f"id-{number}" for number in range(2_500)])
    commit, commits = database._commit, 0

    def stop(connection: Any) -> None:
        nonlocal commits
        commits += 1
        if commits == 3:
            raise KeyboardInterrupt
        commit(connection)

    monkeypatch.setattr(database, "_commit", stop)
    with pytest.raises(KeyboardInterrupt):
        calyx_import.migrate(database, runtime, NOW)
    monkeypatch.undo()
    assert len(rows(database, "legacy_msg_ids")) == 2_000 - 3
    report = calyx_import.migrate(database, runtime, NOW)
    assert (report.without_envelope, report.already_there) == (500, 2_000)
    assert (len(rows(database, "replay_state")), len(rows(database, "legacy_msg_ids"))) == (3, 2_497)


def test_a_copy_that_was_cut_off_is_made_again(
    runtime: Path, database: MailboxDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(runtime, envelope("a"))
    seen(runtime, ["a"])

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", cut)
    with pytest.raises(KeyboardInterrupt):
        calyx_import.migrate(database, runtime, NOW)
    monkeypatch.undo()
    calyx_import.migrate(database, runtime, NOW)
    mailbox = runtime / "mailbox"
    assert json.loads((mailbox / "seen_cache.json.backup").read_text()) == ["a"]
    assert [path.name for path in (mailbox / "inbox_backup_v0").iterdir()] == ["a.json"]


def test_a_migrated_id_is_refused_as_a_replay(bob: Mailbox, send: Callable[..., bytes], runtime: Path) -> None:
    known = uuid.uuid4()
    seen(runtime, [str(known)])
    bob.migrate(runtime, NOW)
    with pytest.raises(Replayed):
        bob.receive(send(message_id=known), now=NOW)
