"""One run of a job from the command line: asked about if it destroys, watched, and reported in one line of JSON."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from angelia.cli import confirm, pipeline_place
from angelia.cli.command_context import Session
from angelia.cli.errors import REPLAYED, TAMPERED, ConfirmationRequired, Usage, nearest
from angelia.cli.pipeline_faults import in_our_words
from angelia.cli.pipeline_progress import Shown
from angelia.errors import AngeliaError, Unavailable

if TYPE_CHECKING:
    from angelia.pipeline.jobs.catalog import Entry
    from angelia.pipeline.jobs.job_context import Job, Report, Work

_SIMULATE = "simulate"  # the job that makes what the others are then asked about
_AGAIN = "nothing half done counts: run it again; -v shows where it happened"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody asked for: the flags that all jobs share, and the options that only some take."""

    since: datetime | None = None
    until: datetime | None = None
    lake: str | None = None
    simulated: bool = False
    master: str | None = None
    remote: str | None = None
    conf: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def entry_of(words: Sequence[str]) -> Entry:
    """The job of that name, which may be two words."""
    from angelia.pipeline.jobs.catalog import JOBS

    name = " ".join(words)
    if name in JOBS:
        return JOBS[name]
    near = nearest(name, JOBS) or next((job for job in JOBS if name and name in job.split()), None)
    hint = f"did you mean `angelia pipeline run {near}`?" if near else f"one of: {', '.join(JOBS)}"
    raise Usage(f"there is no job {name!r}", hint=hint)


def check(entry: Entry, wish: Wish, *, dry_run: bool) -> None:
    """Refuse what the job would not look at."""
    if dry_run and not entry.looks:
        raise Usage(f"`{entry.name}` takes no --dry-run", hint=_example(entry, wish))
    if wish.simulated and not entry.simulated:
        raise Usage(f"`{entry.name}` takes no --simulated: it is about what happened", hint=_example(entry, wish))
    for said, taken, name in ((wish.since, entry.since, "--from"), (wish.until, entry.until, "--to")):
        if said is not None and not taken:
            raise Usage(f"`{entry.name}` takes no {name}", hint=_example(entry))
    known = {*entry.options, *entry.more}
    for name in wish.options:
        if name not in known:
            takes = ", ".join(flag(one) for one in entry.options) or "none of its own"
            raise Usage(f"`{entry.name}` takes no {flag(name)}", hint=f"its flags are: {takes}")


def flag(option: str) -> str:
    """An option as the command line says it."""
    return {"messages_per_agent_per_day": "--messages-per-day"}.get(option, f"--{option.replace('_', '-')}")


def run(session: Session, entry: Entry, wish: Wish) -> int:
    """Run a job; its report goes to stdout, whatever becomes of it."""
    check(entry, wish, dry_run=session.shared.dry_run)
    pipeline_place.require_pipeline()
    if (
        entry.destroys is not None
        and not (session.shared.dry_run or session.shared.yes)
        and not _somebody_there(session)
    ):
        raise _needs_a_yes(entry, wish)
    if entry.name == _SIMULATE and not wish.lake:
        wish = replace(wish, simulated=True)
    report = watched(session, entry.name, wish, entry.load, _asked(session, entry, wish))
    if report.figures.get("chain_faults"):
        return TAMPERED
    return REPLAYED if report.figures.get("duplicates") else 0


def watched(
    session: Session, name: str, wish: Wish, load: Callable[[], Job], before: Callable[[Work, Job], None] | None = None
) -> Report:
    """Do something of the pipeline where it can be seen; `before` may still refuse it."""
    outcome = _Outcome(session, name)
    with outcome.reported(), ExitStack() as stack:
        job = load()
        work = stack.enter_context(working(session, name, wish, outcome))
        if before is not None:
            before(work, job)
        outcome.report = job(work)
    return outcome.report


@contextmanager
def working(session: Session, name: str, wish: Wish, outcome: _Outcome) -> Iterator[Work]:
    """Everything that a job is given. What it opened is closed, and the progress is gone, when it ends."""
    from angelia.pipeline.jobs.job_context import Work

    settings = session.settings
    objects = pipeline_place.archive(settings, wish.lake, simulated=wish.simulated)
    if wish.simulated and name != _SIMULATE:
        pipeline_place.require_simulated(objects)
    where = pipeline_place.spark_at(session, wish.master, wish.remote, wish.conf)
    pipeline_place.check_ledger_reach(settings, where)
    pipeline_place.check_archive_reach(session, where, objects)
    with pipeline_place.ledger(settings) as url, outcome.found_in(url), pipeline_place.private():
        pipeline_place.make_archive(objects)
        with Shown(session.out, _titled(name, wish)) as progress, ExitStack() as stack:
            yield Work(
                settings=pipeline_place.with_hot_tier(settings),
                database_url=url,
                objects=objects,
                now=outcome.began,
                stack=stack,
                where=where,
                since=wish.since,
                until=wish.until,
                dry_run=session.shared.dry_run,
                options=wish.options,
                progress=progress,
                step=outcome.reached,
            )


class _Outcome:
    """What became of a run, from its beginning to the line that says so."""

    def __init__(self, session: Session, job: str) -> None:
        self._session, self._job = session, job
        self._clock = time.monotonic()
        self._run_id: str | None = None
        self.began = datetime.now(UTC)
        self.report: Report | None = None

    def reached(self, _step: str, run: Any) -> None:
        self._run_id = run.run_id

    @contextmanager
    def found_in(self, url: str) -> Iterator[None]:
        """A run of which nobody told us is found in the ledger, if it failed."""
        from angelia.pipeline.runs import AtWork
        from angelia.runs.service import Runs
        from angelia.stores.ledger import StatementError

        try:
            yield
        except AtWork:  # the run that is there is somebody else's
            raise
        except (Exception, KeyboardInterrupt):
            if self._run_id is None:
                with suppress(Unavailable, StatementError):  # it is the ledger that failed
                    newest = pipeline_place.ask(url, lambda ledger: Runs(ledger).page(self._job, None, None, 1))
                    self._run_id = next((str(run.run_id) for run in newest if run.started_at >= self.began), None)
            raise

    @contextmanager
    def reported(self) -> Iterator[None]:
        said: dict[str, Any] = {"state": "failed"}
        try:
            with _stopped_by_sigterm(), in_our_words(self._session, _AGAIN):
                yield
        except AngeliaError as error:
            said = _failure(error)
            raise
        except KeyboardInterrupt:
            said = {"state": "stopped"}
            self._session.out.note("what was committed stays; the next run of this job goes on from there")
            raise
        else:
            assert self.report is not None, "a job reports"
            said = self.report.document()
            self._session.out.note(f"{self.report.state} in {age_of(self.seconds)}: {self.report.summary}")
        finally:
            document = {"run_id": self._run_id, "job": self._job, **said, "seconds": round(self.seconds, 1)}
            self._session.out.records([document])

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._clock


def age_of(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _asked(session: Session, entry: Entry, wish: Wish) -> Callable[[Work, Job], None] | None:
    """The question before something is destroyed, with the numbers of a dry run."""
    deed = entry.destroys
    if deed is None or session.shared.dry_run or session.shared.yes:
        return None

    def ask(work: Work, job: Job) -> None:
        looking = replace(work, dry_run=True)
        foreseen = job(looking)
        if "spark" in looking.__dict__:  # it is the same one, and has been started
            work.__dict__["spark"] = looking.spark
        whose = None if deed.whose is None else str(wish.options.get(deed.whose))
        what = f"{foreseen.rows:,} rows" + (f" of {whose}" if whose else "")
        confirm.may(
            session,
            confirm.Deed(
                verb=deed.verb,
                doing=deed.doing,
                what=what,
                look=_example(entry, wish),
                count=foreseen.rows,
                whole=whose,
                where=work.objects.root,
            ),
        )

    return ask


def _needs_a_yes(entry: Entry, wish: Wish) -> ConfirmationRequired:
    assert entry.destroys is not None
    whose = entry.destroys.whose and wish.options.get(entry.destroys.whose)
    what = f"what is held about {whose}" if whose else "what is past its time"
    return ConfirmationRequired(
        f"{entry.destroys.doing} {what} needs a yes, and there is no terminal to ask",
        hint=f"look first with `{_example(entry, wish)}`, then add --yes",
    )


def _example(entry: Entry, wish: Wish | None = None) -> str:
    import shlex

    given = {} if wish is None else {name: value for name, value in wish.options.items() if name in entry.options}
    flags = " ".join(f"{flag(name)} {shlex.quote(str(value))}" for name, value in given.items())
    look = " --dry-run" if entry.destroys else ""
    return f"angelia pipeline run {entry.name} {flags}".rstrip() + look


def _somebody_there(session: Session) -> bool:
    return sys.stdin.isatty() and session.out.stderr.isatty()


def _titled(name: str, wish: Wish) -> str:
    if wish.since is None and wish.until is None:
        return name
    ends = [f"{one:%Y-%m-%d}" if one else "" for one in (wish.since, wish.until)]
    return f"{name}  {ends[0]} .. {ends[1]}".rstrip()


def _failure(error: AngeliaError) -> dict[str, Any]:
    """What a report says of an error; that somebody else is at work is no fault, and can be told from one."""
    from angelia.pipeline.runs import AtWork

    state = "declined" if isinstance(error, confirm.Declined) else "failed"
    more = {"at_work": True} if isinstance(error, AtWork) else {}
    return {"state": state, "code": error.code, "error": error.message, **more, **error.members}


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """A server that stops, or a machine, ends a run as Ctrl-C does: Spark is stopped, and the report is written."""

    def stop(_number: int, _: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
