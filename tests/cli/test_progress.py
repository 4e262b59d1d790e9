"""Progress speaks late, seldom, and only on stderr."""

from __future__ import annotations

import io

from angelia.cli.output import Manner, Output
from angelia.cli.progress import Progress
from cli.test_output import Terminal


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def worked(seconds: int, *, tty: bool, quiet: bool = False, total: int | None = 1000) -> tuple[str, str]:
    """One unit of ten a second, for so many seconds."""
    kind = Terminal if tty else io.StringIO
    out, clock = Output(Manner(quiet=quiet), kind(), kind(), {}), Clock()
    with Progress(out, "verifying", "entries", total, clock) as progress:
        for _ in range(seconds):
            clock.now += 1
            progress.advance(10)
    assert isinstance(out.stdout, io.StringIO)
    assert isinstance(out.stderr, io.StringIO)
    return out.stdout.getvalue(), out.stderr.getvalue()


def test_short_work_says_nothing() -> None:
    assert worked(1, tty=True) == ("", "")
    assert worked(29, tty=False) == ("", "")


def test_a_terminal_sees_done_total_rate_and_time_left_and_is_left_clean() -> None:
    out, err = worked(50, tty=True)
    assert out == ""
    assert "verifying  ██████████░░░░░░░░░░  500 / 1,000   10 entries/s   50s left" in err
    assert "\n" not in err
    assert err.endswith("\r\x1b[K")


def test_a_pipe_gets_a_plain_line_every_thirty_seconds() -> None:
    assert worked(95, tty=False)[1].splitlines() == [
        "verifying  ██████░░░░░░░░░░░░░░  300 / 1,000   10 entries/s   1m left",
        "verifying  ████████████░░░░░░░░  600 / 1,000   10 entries/s   40s left",
        "verifying  ██████████████████░░  900 / 1,000   10 entries/s   10s left",
    ]


def test_without_a_total_there_is_no_bar() -> None:
    assert worked(30, tty=False, total=None)[1] == "verifying  300 entries   10 entries/s\n"


def test_quiet_is_quiet() -> None:
    assert worked(95, tty=True, quiet=True) == ("", "")
