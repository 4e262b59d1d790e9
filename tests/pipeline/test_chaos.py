"""Long runs that kill the driver, its JVM, a Python worker or PostgreSQL at random: ./dev chaos."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from angelia.stores.objects import Objects
from audit_chains import chained, positions
from receipt_rows import OLD, OwnLedger, fill, held

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(7200)]

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "100"))
VICTIMS = ["driver", "jvm", "worker", "postgresql"]
HERE = Path(__file__).parent
LONGEST = 12.0  # seconds until the kill: session, read, write, commit and purge lie within


class Victim:
    """A pipeline in a process of its own, and what belongs to it."""

    def __init__(self, program: str, *arguments: str) -> None:
        environ = {**os.environ, "PYTHONPATH": f"{HERE.parent}:{HERE}"}
        command = [sys.executable, str(HERE / program), *arguments]
        self._process = subprocess.Popen(command, env=environ, start_new_session=True, stderr=subprocess.PIPE)

    def kill(self, name: str) -> bool:
        """Kill one of its processes; False when there is none of that kind yet, or any more."""
        with suppress(psutil.NoSuchProcess):
            driver = psutil.Process(self._process.pid)
            family = driver.children(recursive=True)
            pids = {
                "driver": [driver.pid],
                "jvm": [one.pid for one in family if one.name() == "java"],
                "worker": [one.pid for one in family if "pyspark" in " ".join(one.cmdline())],
            }[name]
            if pids:
                os.kill(random.choice(pids), signal.SIGKILL)
                return True
        return False

    def wait(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=seconds)
            return True
        return False

    def end(self) -> None:
        """Whatever is left of it. An orphaned JVM may still be at work for a moment: that is part of the test."""
        time.sleep(random.random())
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def strike(chance: random.Random, victim: Victim, ledger: OwnLedger) -> str:
    """Wait for some moment, then kill something."""
    if victim.wait(chance.random() * LONGEST):
        return "nothing"
    name = chance.choice(VICTIMS)
    if name == "postgresql":
        ledger.kill()
        return name
    return name if victim.kill(name) else "nothing"


def test_every_receipt_is_archived_once_whatever_is_killed(own_ledger: OwnLedger, objects: Objects) -> None:
    seed = random.SystemRandom().randrange(10**6)
    chance, made, counts = random.Random(seed), set[str](), dict[str, int]()
    for number in range(ROUNDS):
        asyncio.run(fill(own_ledger.url, OLD - timedelta(days=number % 50), chance.randrange(1, 400)))
        made |= set(asyncio.run(held(own_ledger.url, objects)).ledger)
        victim = Victim("killed.py", own_ledger.url, objects.root, "archive receipts", "never", "{}")
        struck = strike(chance, victim, own_ledger)
        counts[struck] = counts.get(struck, 0) + 1
        if struck == "postgresql":
            own_ledger.restart()
            beside = Victim("killed.py", own_ledger.url, objects.root, "archive receipts", "never", "{}")
            beside.wait(60)
            beside.end()
        victim.wait(60)
        victim.end()
        now = asyncio.run(held(own_ledger.url, objects))
        assert len(now.archive) == len(set(now.archive)), f"twice in the archive, round {number}, seed {seed}"
        assert set(now.archive) | set(now.ledger) == made, f"lost, round {number}, seed {seed}"
    last = Victim("killed.py", own_ledger.url, objects.root, "archive receipts", "never", "{}")
    assert last.wait(300)
    now = asyncio.run(held(own_ledger.url, objects))
    print(f"\n{ROUNDS} rounds, killed {counts}: {len(made):,} receipts, each archived once; seed {seed}")
    assert (now.ledger, sorted(now.archive)) == ([], sorted(made))


def test_every_sealed_event_is_streamed_once_whatever_is_killed(
    own_ledger: OwnLedger, objects: Objects, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    seed = random.SystemRandom().randrange(10**6)
    chance, counts, last = random.Random(seed), dict[str, int](), 0
    for number in range(ROUNDS):
        at = datetime.now(UTC) - timedelta(hours=1)
        last = asyncio.run(chained(own_ledger.url, data_dir, at, chance.randrange(1, 1500)))
        # Now and then somebody begins anew.
        checkpoint = tmp_path / f"checkpoint-{number // 7}"
        victim = Victim("streaming.py", own_ledger.url, objects.root, str(data_dir), str(checkpoint))
        struck = strike(chance, victim, own_ledger)
        counts[struck] = counts.get(struck, 0) + 1
        if struck == "postgresql":
            own_ledger.restart()  # and the stream goes on, for as long as it is let
        victim.wait(chance.random() * LONGEST)
        victim.end()
        now = positions(objects)
        assert now == list(range(1, len(now) + 1)), f"a gap or a repetition, round {number}, seed {seed}"
    victim = Victim("streaming.py", own_ledger.url, objects.root, str(data_dir), str(tmp_path / "last"))
    deadline = time.monotonic() + 300
    while len(positions(objects)) < last and time.monotonic() < deadline:
        time.sleep(0.5)
    victim.end()
    print(f"\n{ROUNDS} rounds, killed {counts}: {last:,} events, each archived once; seed {seed}")
    assert positions(objects) == list(range(1, last + 1))
