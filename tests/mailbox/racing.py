"""Run by the tests as a program: many processes do the same thing to one mailbox at the same moment.

`racing.py receive HOME NAME FILE COUNT` opens one envelope in COUNT processes.
`racing.py remember DIRECTORY KEYS COUNT` claims the same KEYS replay keys in COUNT processes, each in another order.
Prints one JSON object: how often each outcome came.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from angelia.envelope.refusals import Replayed
from angelia.errors import AngeliaError
from angelia.mailbox import identity, replay
from angelia.mailbox.database import MailboxDatabase
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.replay import SeenEnvelope

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


def receive(home: str, name: str, file: str) -> Counter[str]:
    content = Path(file).read_bytes()
    with Mailbox(Path(home), identity.load(Path(home), name, lambda: ""), NOW) as box:
        wait()
        try:
            box.receive(content, now=NOW)
        except AngeliaError as refused:
            return Counter([type(refused).__name__])
    return Counter(["opened"])


def remember(directory: str, keys: str) -> Counter[str]:
    database, outcomes = MailboxDatabase(Path(directory)), Counter[str]()
    order = list(range(int(keys)))
    random.Random(os.getpid()).shuffle(order)
    wait()
    for number in order:
        seen = SeenEnvelope(
            replay_key=f"{number:064x}",
            msg_id=str(number),
            sender="alice",
            sender_fp="alice",
            recipient_fp="bob",
            seen_at=NOW,
            envelope_timestamp=NOW,
            expires_at=NOW + timedelta(days=7),
        )
        try:
            with database.transaction() as tx:
                replay.remember(tx, seen)
            outcomes["won"] += 1
        except Replayed:
            outcomes["Replayed"] += 1
    database.close()
    return outcomes


def wait() -> None:
    """Until all are ready: the parent closes its end of the pipe."""
    os.write(ready[1], b".")
    os.read(gate[0], 1)


def race(runner: Callable[[], Counter[str]], count: int) -> Counter[str]:
    results = os.pipe()
    for _ in range(count):
        if os.fork() == 0:
            os.close(gate[1])
            os.write(results[1], json.dumps(runner()).encode() + b"\n")
            os._exit(0)
    os.close(results[1])
    started = 0
    while started < count:
        started += len(os.read(ready[0], count))
    os.close(gate[1])
    assert [os.wait()[1] for _ in range(count)] == [0] * count
    with os.fdopen(results[0]) as lines:
        return sum((Counter(json.loads(line)) for line in lines), Counter())


if __name__ == "__main__":
    ready, gate = os.pipe(), os.pipe()
    verb, *arguments, processes = sys.argv[1:]
    chosen: Callable[..., Counter[str]] = {"receive": receive, "remember": remember}[verb]
    print(json.dumps(race(lambda: chosen(*arguments), int(processes))))
