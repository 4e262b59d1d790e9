"""One run of a job from the command line: confirmed if it destroys, watched, and reported in one line of JSON."""

from __future__ import annotations

import math
import shlex
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any

from angelia.cli import confirm, pipeline_environment
from angelia.cli.command_context import CommandContext
from angelia.cli.errors import INTERRUPTED, REPLAYED, TAMPERED, Usage, nearest
from angelia.cli.pipeline_environment import PipelineFlags
from angelia.cli.progress import JobProgressDisplay
from angelia.errors import AngeliaError, Unavailable

if TYPE_CHECKING:
    from angelia.pipeline.jobs.catalog import JobEntry
    from angelia.pipeline.jobs.job_context import Job, JobContext, JobReport

_SIMULATE = "simulate"  # the job that makes the archive that --simulated names for other jobs
_AGAIN = "nothing half done counts: run it again; -v shows where it happened"


def run(session: CommandContext, words: Sequence[str], flags: PipelineFlags, options: Mapping[str, Any]) -> int:
    """Runs the job of that name; its report goes to stdout, also if it fails. Returns the exit code."""
    entry = _entry(words)
    _check(session, entry, flags, options)
    pipeline_environment.require_pipeline()
    whose = options.get(entry.destroys.whose or "") if entry.destroys else None
    if entry.destroys is not None:
        what = f"what is held about {whose}" if whose else "what is past its time"
        confirm.require_terminal(session, _deed(entry, options, what))
    if entry.name == _SIMULATE and not flags.lake:
        flags = replace(flags, simulated=True)

    def confirmed(work: JobContext) -> JobReport:
        """The job, after the question with the numbers of a dry run if it destroys something."""
        job = entry.load()
        if entry.destroys is not None and not (work.dry_run or session.shared.yes):
            looking = replace(work, dry_run=True)
            rows = job(looking).rows
            if "spark" in looking.__dict__:  # it is the same one, and has been started
                work.__dict__["spark"] = looking.spark
            what = f"{rows:,} rows" + (f" of {whose}" if whose else "")
            deed = replace(_deed(entry, options, what), count=rows, whole=whose and str(whose), where=work.objects.root)
            confirm.may(session, deed)
        return job(work)

    report = _watched(session, entry.name, flags, options, confirmed)
    if report.figures.get("chain_faults"):
        return TAMPERED
    return REPLAYED if report.figures.get("duplicates") else 0


def stream_audit(session: CommandContext, flags: PipelineFlags) -> int:
    """Archives the audit as it is sealed, until a signal; returns the exit code."""
    pipeline_environment.require_pipeline()
    stop, signals = threading.Event(), list[int]()

    def asked_to_stop(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        signals.append(number)
        stop.set()

    def until_stopped(work: JobContext) -> JobReport:
        from angelia.pipeline.jobs.stream_audit import stream_audit

        work.rows = math.inf  # it goes on without an end
        work.spark.version  # noqa: B018 - Spark takes Ctrl-C for itself when it starts
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, asked_to_stop)
        session.out.note("archiving what is sealed; Ctrl-C stops it")
        return stream_audit(work)

    _watched(session, "archive audit", flags, {"stop": stop}, until_stopped)
    return INTERRUPTED if signal.SIGINT in signals else 0


def _entry(words: Sequence[str]) -> JobEntry:
    """The job of that name, which may be two words."""
    from angelia.pipeline.jobs.catalog import JOBS

    name = " ".join(words)
    if name in JOBS:
        return JOBS[name]
    near = nearest(name, JOBS) or next((job for job in JOBS if name and name in job.split()), None)
    hint = f"did you mean `angelia pipeline run {near}`?" if near else f"one of: {', '.join(JOBS)}"
    raise Usage(f"there is no job {name!r}", hint=hint)


def _check(session: CommandContext, entry: JobEntry, flags: PipelineFlags, options: Mapping[str, Any]) -> None:
    """Raises Usage for a flag that the job does not take."""
    if session.shared.dry_run and not entry.looks:
        raise Usage(f"`{entry.name}` takes no --dry-run", hint=_example(entry, options))
    if flags.simulated and not entry.simulated:
        raise Usage(f"`{entry.name}` takes no --simulated: it is about what happened", hint=_example(entry, options))
    periods = ((session.shared.since, entry.since, "--from"), (session.shared.until, entry.until, "--to"))
    for given, taken, name in periods:
        if given is not None and not taken:
            raise Usage(f"`{entry.name}` takes no {name}", hint=_example(entry, {}))
    known = {*entry.options, *entry.more}
    for name in options:
        if name not in known:
            takes = ", ".join(map(_flag, entry.options)) or "none of its own"
            raise Usage(f"`{entry.name}` takes no {_flag(name)}", hint=f"its flags are: {takes}")


def _flag(option: str) -> str:
    """The flag of the command line that sets an option of a job."""
    return {"messages_per_agent_per_day": "--messages-per-day"}.get(option, f"--{option.replace('_', '-')}")


def _example(entry: JobEntry, options: Mapping[str, Any]) -> str:
    given = {name: value for name, value in options.items() if name in entry.options}
    flags = " ".join(f"{_flag(name)} {shlex.quote(str(value))}" for name, value in given.items())
    look = " --dry-run" if entry.destroys else ""
    return f"angelia pipeline run {entry.name} {flags}".rstrip() + look


def _deed(entry: JobEntry, options: Mapping[str, Any], what: str) -> confirm.Deed:
    assert entry.destroys is not None
    return confirm.Deed(entry.destroys.verb, entry.destroys.doing, what, look=_example(entry, options))


def _watched(
    session: CommandContext, name: str, flags: PipelineFlags, options: Mapping[str, Any], job: Job
) -> JobReport:
    """Runs a job with its progress on stderr and its report on stdout; returns the report."""
    outcome = _Outcome(session, name)
    with outcome.reported(), _work(session, name, flags, options, outcome) as work:
        outcome.report = job(work)
    return outcome.report


@contextmanager
def _work(
    session: CommandContext, name: str, flags: PipelineFlags, options: Mapping[str, Any], outcome: _Outcome
) -> Iterator[JobContext]:
    """What a job is given. At the end all that it opened is closed, and the progress line is cleared."""
    from angelia.pipeline.jobs.job_context import JobContext

    settings, shared = session.settings, session.shared
    objects = flags.archive(settings)
    if flags.simulated and name != _SIMULATE:
        pipeline_environment.require_simulated(objects)
    where = flags.spark(session)
    pipeline_environment.check_ledger_reach(settings, where)
    pipeline_environment.check_archive_reach(session, where, objects)
    ends = [f"{one:%Y-%m-%d}" if one else "" for one in (shared.since, shared.until)]
    title = f"{name}  {ends[0]} .. {ends[1]}".rstrip() if any(ends) else name
    with pipeline_environment.ledger(settings) as url, outcome.found_in(url), pipeline_environment.private():
        pipeline_environment.make_archive(objects)
        with JobProgressDisplay(session.out, title) as progress, ExitStack() as stack:
            yield JobContext(
                settings=pipeline_environment.with_hot_tier(settings),
                database_url=url,
                objects=objects,
                now=outcome.began,
                stack=stack,
                where=where,
                since=shared.since,
                until=shared.until,
                dry_run=shared.dry_run,
                options=options,
                progress=progress,
                step=outcome.reached,
            )


class _Outcome:
    """What became of a run: its id, its report or its error, and the line of JSON that tells."""

    def __init__(self, session: CommandContext, job: str) -> None:
        self._session, self._job = session, job
        self._clock = time.monotonic()
        self._run_id: str | None = None
        self.began = datetime.now(UTC)
        self.report: JobReport | None = None

    def reached(self, _step: str, run: Any) -> None:
        self._run_id = run.run_id

    @contextmanager
    def found_in(self, url: str) -> Iterator[None]:
        """Looks up in the ledger the id of a run that failed before its first step was reported."""
        from angelia.pipeline.runs import AtWork
        from angelia.runs.service import Runs
        from angelia.stores.ledger import StatementError

        try:
            yield
        except AtWork:  # the open run is another process's
            raise
        except (Exception, KeyboardInterrupt):
            if self._run_id is None:
                with suppress(Unavailable, StatementError):  # it may be the ledger that failed
                    newest = pipeline_environment.ask(url, lambda ledger: Runs(ledger).page(self._job, None, None, 1))
                    self._run_id = next((str(run.run_id) for run in newest if run.started_at >= self.began), None)
            raise

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Prints the report of what happens in this block, however it ends. `at_work` tells a scheduler that another
        process runs the job, which is no fault."""
        from angelia.pipeline.runs import AtWork

        said: dict[str, Any] = {"state": "failed"}
        try:
            with _stopped_by_sigterm(), pipeline_environment.errors_in_one_sentence(self._session, _AGAIN):
                yield
        except AngeliaError as error:
            said |= {"state": "declined"} if isinstance(error, confirm.Declined) else {}
            said |= {"code": error.code, "error": error.message}
            said |= {"at_work": True} if isinstance(error, AtWork) else {}
            said |= error.members
            raise
        except KeyboardInterrupt:
            said = {"state": "stopped"}
            self._session.out.note("what was committed stays; the next run of this job goes on from there")
            raise
        else:
            assert self.report is not None, "a job reports"
            said = self.report.document()
            took = f"{self.seconds:.0f} s" if self.seconds < 120 else f"{self.seconds / 60:.0f} min"
            self._session.out.note(f"{self.report.state} in {took}: {self.report.summary}")
        finally:
            document = {"run_id": self._run_id, "job": self._job, **said, "seconds": round(self.seconds, 1)}
            self._session.out.records([document])

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._clock


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM of a server or machine that stops ends a run as Ctrl-C does: Spark is stopped, the report is written."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
