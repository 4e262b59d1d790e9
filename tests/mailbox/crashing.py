"""Run by the tests as a program: does one thing to a copy of an agents' home, and is killed at every step of it.

`crashing.py SCENARIO HOME RUNS [ARGUMENT]` copies HOME to RUNS/0, RUNS/1, … and in copy n kills the process right
before its n-th step that touches the disk, until a run comes to its end. Prints the number of copies.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from angelia.mailbox import identity
from angelia.mailbox.database import MailboxDatabase
from angelia.mailbox.mailbox import Mailbox

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
SUITES = 0b1011  # 1, 2 and 4, so that a separate ML-KEM key takes part
STEPS = ("open", "write", "fsync", "rename", "unlink", "mkdir")


def opened(home: Path, name: str) -> Mailbox:
    return Mailbox(home, identity.load(home, name, lambda: ""), NOW)


def receive(home: Path, argument: str) -> Callable[[], object]:
    box, content = opened(home, "bob"), Path(argument).read_bytes()
    return lambda: box.receive(content, now=NOW)


def receive_two(home: Path, argument: str) -> Callable[[], object]:
    box, contents = opened(home, "bob"), [path.read_bytes() for path in sorted(Path(argument).iterdir())]
    return lambda: box.receive_many(contents, now=NOW)


def seal(home: Path, argument: str) -> Callable[[], object]:
    box = opened(home, "alice")
    known = box.pinned_keys.bundle("bob", NOW)
    assert known is not None
    return lambda: box.outbox.seal(known.bundle, argument.encode(), now=NOW)


def reseal(home: Path, argument: str) -> Callable[[], object]:
    box = opened(home, "alice")
    known = box.pinned_keys.bundle("bob", NOW)
    assert known is not None
    return lambda: box.outbox.reseal(argument, known.bundle, NOW + timedelta(minutes=10))


def rotate(home: Path, argument: str) -> Callable[[], object]:
    rotation, what = (
        opened(home, "bob").key_rotation,
        {flag: flag in argument for flag in ("kem", "signer", "emergency")},
    )
    return lambda: (rotation.begin(NOW, suites=SUITES, **what), rotation.finish(NOW))


def wait(home: Path, argument: str) -> Callable[[], object]:
    rotation = opened(home, "bob").key_rotation
    return lambda: (
        rotation.begin(NOW, emergency=True, signer=True, why="laptop lost"),
        rotation.finish(NOW),  # the rotation that was under way
        rotation.begin(NOW, kem=False),
    )


def abandon(home: Path, argument: str) -> Callable[[], object]:
    rotation = opened(home, "bob").key_rotation
    return lambda: (rotation.begin(NOW, signer=True, suites=SUITES), rotation.abandon())


def begin_again(home: Path, argument: str) -> Callable[[], object]:
    box = opened(home, "carol")
    return lambda: (box.own_keys.first_bundle(NOW, SUITES), box.key_rotation.finish(NOW))


def migrate(home: Path, argument: str) -> Callable[[], object]:
    box = opened(home, "bob")
    runtime = home / "runtime"
    return lambda: box.migrate(runtime, NOW)


def open_first(home: Path, argument: str) -> Callable[[], object]:
    return lambda: opened(home, "carol")


def read(home: Path, argument: str) -> Callable[[], object]:
    box = opened(home, "bob")
    return lambda: box.inbox.read(argument, NOW)


def kill_before(step: int) -> None:
    """From here on count what touches the disk, and die right before number `step`."""
    count = 0

    def counted(act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        nonlocal count
        if act is real_open and not arguments[1] & os.O_CREAT:
            return act(*arguments, **named)
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        return act(*arguments, **named)

    real_open = os.open
    for name in STEPS:
        setattr(os, name, functools.partial(counted, getattr(os, name)))
    commit = MailboxDatabase._commit

    def committed(self: MailboxDatabase, connection: sqlite3.Connection) -> None:
        counted(commit, self, connection)
        counted(lambda: None)  # what was committed and not yet told

    MailboxDatabase._commit = committed  # type: ignore[method-assign]


def run(scenario: str, home: Path, argument: str, step: int) -> bool:
    """Whether the run came to its end."""
    child = os.fork()
    if child == 0:
        prepared = globals()[scenario](home, argument)
        kill_before(step)
        prepared()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status not in (0, signal.SIGKILL):
        raise SystemExit(f"{scenario} failed at step {step}: {status}")
    return status == 0


if __name__ == "__main__":
    scenario, home, runs, *rest = sys.argv[1:]
    step, done = 0, False
    while not done:
        copy = Path(runs) / str(step)
        shutil.copytree(home, copy, symlinks=True)
        done = run(scenario, copy, rest[0] if rest else "", step)
        step += 1
    print(step)
