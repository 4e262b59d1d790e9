"""Progress speaks late, seldom, and only on stderr."""

from __future__ import annotations

import io

from angelia.cli.output import Manner, Output
from angelia.cli.progress import JobProgressDisplay, ProgressBar, Stage
from cli.test_output import Terminal


class Clock:
    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def worked(seconds: int, *, tty: bool, quiet: bool = False, total: int | None = 1000) -> tuple[str, str]:
    """One unit of ten a second, for so many seconds."""
    kind = Terminal if tty else io.StringIO
    out, clock = Output(Manner(quiet=quiet), kind(), kind()), Clock()
    with ProgressBar(out, "verifying", "entries", total, clock) as progress:
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


# Jobs of the pipeline.


def test_a_stage_goes_on_when_spark_has_started_in_it() -> None:
    clock, said = Clock(0.0), io.StringIO()
    with JobProgressDisplay(Output(Manner(), stderr=said), "archive receipts", clock) as progress:
        progress.stage("archiving", 200)
        progress.stage("starting Spark, local")
        clock.now = 8.0
        progress.watch(lambda: (0, 0))
        clock.now = 40.0
        progress.advance(100)
    assert said.getvalue().splitlines() == [
        "archive receipts   starting Spark, local … 8 s",
        "archiving  ██████████░░░░░░░░░░  100 / 200   2 rows/s   40s left",
        "archiving  ████████████████████  100 / 100   2 rows/s",
    ]


def test_the_share_of_sparks_tasks_stands_for_rows_and_never_goes_back() -> None:
    clock, said = Clock(0.0), io.StringIO()
    stage = Stage(Output(Manner(), stderr=said), "reading", 1000, clock)
    clock.now = 40.0
    stage.expect(3, 4)
    clock.now = 80.0
    stage.expect(1, 4)
    first, second = said.getvalue().splitlines()
    assert "750 / 1,000" in first
    assert "750 / 1,000" in second


def test_of_several_steps_each_is_expected_to_be_as_long_as_the_last() -> None:
    clock, said = Clock(0.0), io.StringIO()
    stage = Stage(Output(Manner(), stderr=said), "reading", 1000, clock)
    stage.add(100)
    clock.now = 40.0
    stage.expect(1, 2)
    assert "150 / 1,000" in said.getvalue()
