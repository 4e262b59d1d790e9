"""Replay protection: an envelope opens once. Replay keys are content hashes, pruned once the envelope cannot open."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from datetime import datetime, timedelta

from angelia.envelope.refusals import Expired, IdConflict, Replayed
from angelia.envelope.times import SKEW
from angelia.errors import InvalidArgument
from angelia.mailbox.database import MailboxDatabase, MailboxTx, NamedStatements, ago, stamp, unstamp

LEGACY_DENIED = timedelta(hours=24)
RETENTION_HOURS = 24
_CHUNK = 5_000
_LAST_PRUNE, _PRUNED_TO = "last_prune", "pruned_to"
CHANNELS_PRUNED_TO = "channels_pruned_to"
# Two processes that read the same clock a moment apart have not stepped it back.
_JITTER = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEnvelope:
    """A row of the replay state, in the order of its columns; `sender` is None if its handle is not known."""

    replay_key: str
    msg_id: str
    sender: str | None
    sender_fp: str
    recipient_fp: str
    seen_at: datetime
    envelope_timestamp: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class PruneResult:
    """How many rows were pruned; the warning says why none could be."""

    rows: int
    warning: str | None = None


def probe(database: MailboxDatabase, replay_key: str, msg_id: str, expires_at: datetime, now: datetime) -> None:
    """Raises early for an envelope that was opened before. The decision itself is made by `remember`."""
    refuse_seen(database, replay_key, now)
    if database.row("legacy_since", msg_id, now - LEGACY_DENIED):
        raise Replayed("a message of this id was received before this mailbox was migrated")
    # A clock that ran ahead may have pruned rows too early; the envelopes that they covered stay closed.
    pruned_to = database.meta(_PRUNED_TO)
    if pruned_to is not None and stamp(expires_at) <= pruned_to:
        raise Expired("this mailbox no longer remembers whether it has opened the envelope, so it does not open it")


def refuse_seen(database: NamedStatements, replay_key: str, now: datetime) -> None:
    if found := database.row("seen_at", replay_key):
        raise Replayed(
            f"this envelope was opened {ago(unstamp(found[0]), now)} ago and is refused a second time",
            hint=f"read the stored copy: angelia mail open {replay_key[:12]}",
        )


def remember(tx: MailboxTx, seen: SeenEnvelope) -> None:
    """Claims an envelope. Of any number of processes exactly one returns without an error."""
    if tx.row("id_used", seen.msg_id, seen.replay_key, seen.sender) is None:
        if insert(tx, seen):
            return
        refuse_seen(tx, seen.replay_key, seen.seen_at)
    raise IdConflict("the sender used this message id before, for another envelope; the first one stands")


def insert(tx: MailboxTx, seen: SeenEnvelope) -> bool:
    """Adds a row; False if the envelope or the sender's message id is known already."""
    return tx.row("remember", *astuple(seen)) is not None


def prune_due(database: MailboxDatabase, now: datetime) -> bool:
    last = database.meta(_LAST_PRUNE)
    return last is None or abs(now - unstamp(last)) >= timedelta(hours=RETENTION_HOURS)


def prune(
    database: MailboxDatabase, now: datetime, retention_hours: int = RETENTION_HOURS, *, force: bool = False
) -> PruneResult:
    """Prunes rows that were seen long ago *and* whose envelopes have expired, so that they cannot open in any case."""
    if retention_hours < 0 or (retention_hours < RETENTION_HOURS and not force):
        raise InvalidArgument(
            f"replay state is kept for at least {RETENTION_HOURS} hours", hint="--force keeps it for less"
        )
    if warning := _clock_warning(database, now):
        return PruneResult(0, warning)
    seen_before = now - timedelta(hours=retention_hours)
    rows = prune_expired(database, _PRUNED_TO, "prune_replay", seen_before, now - SKEW)
    with database.transaction() as tx:
        tx.write("prune_legacy", now - LEGACY_DENIED)
        tx.write("write_meta", _LAST_PRUNE, now)
    return PruneResult(rows)


def prune_channel_offsets(database: MailboxDatabase, now: datetime) -> None:
    """Forgets the offsets of expired messages of channels."""
    prune_expired(database, CHANNELS_PRUNED_TO, "prune_channel_opened", now - SKEW)


def prune_expired(database: MailboxDatabase, mark: str, statement: str, *before: datetime) -> int:
    """Deletes rows in chunks and returns how many. The statement returns when the deleted rows expired; the latest of
    these times is kept in the table `meta`, under `mark`."""
    rows, chunk = 0, _CHUNK
    while chunk == _CHUNK:
        with database.transaction() as tx:
            expiries = [expires_at for (expires_at,) in tx.write(statement, *before, _CHUNK)]
            if expiries:
                tx.write("write_meta", mark, max(tx.meta(mark) or "", *expiries))
        chunk = len(expiries)
        rows += chunk
    return rows


def _clock_warning(database: MailboxDatabase, now: datetime) -> str | None:
    (newest,) = database.row("newest_seen")
    marks = [mark for mark in (database.meta(_LAST_PRUNE), newest) if mark]
    latest = unstamp(max(marks)) if marks else now
    if now >= latest - _JITTER:
        return None
    return (
        f"the clock stands {ago(now, latest)} before the last use of this mailbox, so nothing is pruned; "
        "check the time of this machine"
    )
