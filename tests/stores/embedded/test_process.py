"""Children are signalled, waited for and tried again in bounded time."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

from angelia.stores.embedded.process import Backoff, ParentDeath, Program, end, exists, start


def program(script: str) -> Program:
    return Program(command=("/bin/sh", "-c", script), environ=os.environ, death_signal=signal.SIGTERM)


def test_each_try_waits_twice_as_long_up_to_five_seconds() -> None:
    backoff = Backoff()
    assert [backoff.next(lived=0.0) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_long_life_forgives_earlier_failures() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.next(lived=0.0)
    assert backoff.next(lived=60.0) == 0.1


def test_a_child_that_ignores_the_polite_signal_gets_the_next() -> None:
    reading, writing = os.pipe()
    child = start(program("trap '' TERM; echo trapped; while :; do sleep 1; done"), log=writing)
    os.close(writing)
    assert os.read(reading, 8) == b"trapped\n"
    end(child, ((signal.SIGTERM, 0.2), (signal.SIGKILL, 5.0)))
    assert child.died == "signal 9"
    os.close(reading)


def test_a_child_says_how_it_ended() -> None:
    child = start(program("exit 3"))
    assert child.wait(5.0)
    assert child.died == "exit code 3"


def test_the_watchdog_ends_with_the_child_it_watches() -> None:
    child = start(program("exit 0"), notice=ParentDeath.WATCHDOG)
    watchdog = child._watchdog
    assert watchdog is not None
    assert child.wait(5.0)
    assert watchdog.returncode == 0


def test_children_are_started_by_the_main_thread_only() -> None:
    failures: list[BaseException] = []

    def attempt() -> None:
        try:
            start(program("exit 0"))
        except RuntimeError as error:
            failures.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert "main thread" in str(failures[0])


def test_a_process_nobody_waited_for_counts_as_gone() -> None:
    zombie = subprocess.Popen(["true"])
    deadline = time.monotonic() + 5
    while exists(zombie.pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    zombie.wait()
