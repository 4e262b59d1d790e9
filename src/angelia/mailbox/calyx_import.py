"""Imports the replay state of a Calyx mailbox, so that messages it has seen are not accepted here as new.

The import is idempotent: an interrupted run is run again, and a second complete run changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from angelia.envelope.times import SKEW
from angelia.errors import InvalidArgument, NotFound
from angelia.mailbox import replay
from angelia.mailbox.database import FILE, MailboxDatabase
from angelia.mailbox.envelope_files import FileProblem, read_safely
from angelia.mailbox.private_files import FILE_MODE, UnsafeFile
from angelia.mailbox.replay import SeenEnvelope

MOST_CACHE_BYTES = 16 << 20
MOST_ENVELOPE_BYTES = 4 << 20
MOST_ID = 128
_BATCH = 1_000
_TIME = re.compile(r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """The outcome of a migration: counts of message ids, the backups that it made, and files that it could not read."""

    ids: int
    with_envelope: int
    without_envelope: int
    already_there: int
    backups: tuple[Path, ...]
    problems: tuple[FileProblem, ...]


def old_replay_key(envelope: dict[str, Any]) -> str:
    """Returns Calyx's replay key: the hash of JSON with sorted keys and no spaces, normalised to NFC."""
    if envelope.get("protocol_version", "0.1") != "0.1":
        raise InvalidArgument("the envelope is of no version of Calyx that is known")
    _refuse_floats(envelope)
    text = json.dumps(envelope, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(unicodedata.normalize("NFC", text).encode()).hexdigest()


def migrate(database: MailboxDatabase, runtime: Path, now: datetime) -> MigrationResult:
    """Copies Calyx's replay state into this one. Calyx's own files are backed up first and never changed."""
    mailbox = runtime / "mailbox"
    if not mailbox.is_dir():
        raise NotFound(f"there is no Calyx mailbox in {runtime}", hint="name the directory that holds `mailbox`")
    msg_ids = _seen(mailbox / "seen_cache.json")
    backups = _back_up(mailbox)
    envelopes, problems = _envelopes(mailbox, now)
    if os.path.lexists(mailbox / FILE):
        # Envelopes that it lists cannot be replayed here: Angelia opens no envelope of Calyx.
        problems.append(FileProblem(mailbox / FILE, "is the memory of version 0.1, and is not taken over"))
    found = missing = 0
    for start in range(0, len(msg_ids), _BATCH):
        with database.transaction() as tx:
            for msg_id in msg_ids[start : start + _BATCH]:
                if msg_id in envelopes:
                    found += replay.insert(tx, envelopes[msg_id])
                else:
                    missing += tx.row("add_legacy", msg_id, now) is not None
    return MigrationResult(len(msg_ids), found, missing, len(msg_ids) - found - missing, backups, tuple(problems))


def _seen(path: Path) -> list[str]:
    """Returns the message ids of `seen_cache.json`, each once, in their order."""
    try:
        content = read_safely(path, path, most=MOST_CACHE_BYTES)
    except NotFound:
        return []  # version 0.1 has a database and no cache
    try:
        listed = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path} is not JSON: {error}") from error
    if not isinstance(listed, list):
        raise InvalidArgument(f"{path} holds no list of message ids")
    for one in listed:
        if not isinstance(one, str) or not 1 <= len(one) <= MOST_ID or not one.isascii() or not one.isprintable():
            raise InvalidArgument(f"{path} holds {str(one)[:40]!r}, which is no message id")
    return list(dict.fromkeys(listed))


def _back_up(mailbox: Path) -> tuple[Path, ...]:
    """Makes backups beside the originals and returns those it made. An equal backup is not repeated, another one is
    never overwritten."""
    copies = []
    backed_up = {"seen_cache.json": "seen_cache.json.backup", "inbox": "inbox_backup_v0", "outbox": "outbox_backup_v0"}
    for name, backup in backed_up.items():
        original = mailbox / name
        if (original.is_dir() or _content(original)) and (copy := _free(mailbox / backup, original)):
            _copy(original, copy)
            copies.append(copy)
    return tuple(copies)


def _free(wanted: Path, original: Path) -> Path | None:
    """Returns the first free name for a backup; None when a backup of the same content exists."""
    for number in count():
        path = wanted if number == 0 else wanted.with_name(f"{wanted.name}.{number}")
        if not os.path.lexists(path):
            return path
        if _content(path) == _content(original):
            return None
    raise AssertionError("names do not end")


def _content(path: Path) -> dict[str, str] | None:
    """Returns the hashes of a file or of a directory's files, by name; None for anything else."""
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
        return None
    if path.is_file():
        return {"": hashlib.sha256(path.read_bytes()).hexdigest()}
    return {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in _files(path)}


def _files(folder: Path) -> list[Path]:
    return [one for one in folder.iterdir() if one.is_file() and not one.is_symlink()]


def _copy(original: Path, copy: Path) -> None:
    # Whole or not at all: a copy that a crash cut off would count as different content and stay for ever.
    half = copy.with_name(f".{copy.name}.half")
    if original.is_dir():
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(mode=0o700)
        for one in _files(original):
            _copy_content(one, half / one.name)
    else:
        half.unlink(missing_ok=True)
        _copy_content(original, half)
    half.rename(copy)


def _copy_content(original: Path, copy: Path) -> None:
    """Copies into a new file that is private from its creation on."""
    source = os.open(original, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(source, "rb") as reading:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(copy, flags, FILE_MODE), "wb") as writing:
            shutil.copyfileobj(reading, writing)


def _envelopes(mailbox: Path, now: datetime) -> tuple[dict[str, SeenEnvelope], list[FileProblem]]:
    """Returns the envelopes that still exist as files, by message id, and the files that are none."""
    found: dict[str, SeenEnvelope] = {}
    problems: list[FileProblem] = []
    for path in _envelope_files(mailbox):
        try:
            envelope = _parse(read_safely(path, path, most=MOST_ENVELOPE_BYTES), now)
        except (InvalidArgument, UnsafeFile, NotFound) as error:
            problems.append(FileProblem(path, f"is left out: {error.message}"))
            continue
        found.setdefault(envelope.msg_id, envelope)
    return found, problems


def _envelope_files(mailbox: Path) -> Iterator[Path]:
    for name in ("inbox", "outbox"):
        if (mailbox / name).is_dir():
            yield from sorted((mailbox / name).glob("*.json"))


def _parse(content: bytes, now: datetime) -> SeenEnvelope:
    """Returns the row that Calyx would have for an envelope. Calyx accepts an envelope for five minutes."""
    try:
        envelope = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("it is not JSON") from error
    header = envelope.get("header") if isinstance(envelope, dict) else None
    if not isinstance(header, dict):
        raise InvalidArgument("it is no envelope of Calyx")
    msg_id, sender, recipient, time = (
        header.get(name) for name in ("msg_id", "sender_fp", "recipient_fp", "timestamp")
    )
    if not all(isinstance(one, str) and 1 <= len(one) <= MOST_ID for one in (msg_id, sender, recipient)):
        raise InvalidArgument("its header is not complete")
    if not isinstance(time, str) or _TIME.match(time) is None:
        raise InvalidArgument("its timestamp is not one of Calyx")
    try:
        at = datetime.fromisoformat(time).astimezone(UTC)
        return SeenEnvelope(
            replay_key=old_replay_key(envelope),
            msg_id=str(msg_id),
            sender=None,
            sender_fp=str(sender),
            recipient_fp=str(recipient),
            seen_at=now,
            envelope_timestamp=at,
            expires_at=at + SKEW,
        )
    except (ValueError, OverflowError, RecursionError) as error:  # 30 February; the end of 9999; a lone surrogate
        raise InvalidArgument("a value in it cannot be read") from error


def _refuse_floats(value: object) -> None:
    if isinstance(value, float):
        raise InvalidArgument("it holds a number that is not whole")
    if isinstance(value, dict):
        for one in value.values():
            _refuse_floats(one)
    if isinstance(value, list):
        for one in value:
            _refuse_floats(one)
