"""The cost of the replay check: claiming an envelope through the mailbox's code, compared with a bare INSERT.

Both sides write the same rows into the same table with the same pragmas, one durable transaction a row. They alternate
row by row, because over whole rounds the disk varies more than the difference. The peer is plain `sqlite3`.
"""

from __future__ import annotations

import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from angelia.envelope.refusals import Replayed
from angelia.mailbox import replay
from angelia.mailbox.database import _PRAGMAS, FILE, SQL, MailboxDatabase, stamp
from angelia.mailbox.replay import SeenEnvelope
from harness import Result

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
LATER = NOW + timedelta(days=7)
_TIMES = (stamp(NOW), stamp(NOW), stamp(LATER))


def main(*, quick: bool) -> list[Result]:
    count = 2_000 if quick else 20_000
    directory = Path(tempfile.mkdtemp(prefix="angelia-bench-"))
    ours, bare = _database(directory / "ours"), _bare(directory / "bare")

    def claim(number: int) -> None:
        with ours.transaction() as tx:
            replay.remember(tx, _seen(number))

    def insert(number: int) -> None:
        bare.execute("BEGIN IMMEDIATE")
        bare.execute(SQL["remember"], (f"{number:064x}", str(number), "a", "b", *_TIMES)).fetchone()
        bare.execute("COMMIT")

    def refuse(number: int) -> None:
        try:
            replay.refuse_seen(ours, f"{number:064x}", NOW)
        except Replayed:
            return
        raise AssertionError("a replay was not noticed")

    def look(number: int) -> None:
        assert bare.execute(SQL["seen_at"], (f"{number:064x}",)).fetchall()

    try:
        return [
            _against("claim a replay key / bare INSERT", count, claim, insert, "each durable"),
            _against("refuse a replay / bare SELECT", count, refuse, look, "with the words of the refusal"),
        ]
    finally:
        bare.close()
        ours.close()
        shutil.rmtree(directory)


def _against(what: str, count: int, ours: Callable[[int], None], peer: Callable[[int], None], note: str) -> Result:
    """Compares the medians of both sides; the side that goes first alternates."""
    times: dict[Callable[[int], None], list[float]] = {ours: [], peer: []}
    for number in range(count):
        for act in (ours, peer) if number % 2 else (peer, ours):
            began = time.perf_counter()
            act(number)
            times[act].append(time.perf_counter() - began)
    mine, theirs = statistics.median(times[ours]), statistics.median(times[peer])
    return Result(what, f"{mine * 1e6:,.0f} µs", f"{theirs * 1e6:,.0f} µs", mine / theirs, f"lower is better; {note}")


def _database(path: Path) -> MailboxDatabase:
    path.mkdir(mode=0o700)
    return MailboxDatabase(path)


def _bare(path: Path) -> sqlite3.Connection:
    _database(path).close()
    connection = sqlite3.connect(path / FILE, isolation_level=None)
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}").fetchall()
    return connection


def _seen(number: int) -> SeenEnvelope:
    return SeenEnvelope(
        replay_key=f"{number:064x}",
        msg_id=str(number),
        sender="a",
        sender_fp="a",
        recipient_fp="b",
        seen_at=NOW,
        envelope_timestamp=NOW,
        expires_at=LATER,
    )
