"""What the archive holds: its tables, SQL queries over them, and the report that analytics' results make."""

from __future__ import annotations

import re
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from angelia.cli import pipeline_environment
from angelia.cli.command_context import CommandContext
from angelia.cli.errors import Usage
from angelia.cli.flags import PAGE
from angelia.cli.paging import pages_of, show_list
from angelia.cli.pipeline_environment import PipelineFlags
from angelia.cli.progress import JobProgressDisplay
from angelia.cli.tables import Column, counted
from angelia.cli.times import full
from angelia.errors import AngeliaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from angelia.stores.objects import Objects

_FIRST_WORD = re.compile(r"(?:[\s(]|--[^\n]*\n|/\*.*?\*/)*(\w*)", re.DOTALL)  # after brackets and comments
_ASKING = ("select", "with", "from", "values", "table")
_DESCRIBING = ("describe", "desc", "show", "explain")
_EXAMPLE = 'angelia pipeline sql "SELECT day, count(*) FROM delivery_receipts GROUP BY day"'


class ArchiveTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the archive, as its log describes it."""

    name: str
    rows: int
    files: int
    bytes: int
    first_day: date | None
    last_day: date | None
    version: int
    about: str
    simulated: bool


def list_tables(session: CommandContext, flags: PipelineFlags) -> None:
    """Lists the tables that were written, and how large they are."""
    columns: list[Column[ArchiveTable]] = [
        Column("NAME", lambda t: t.name),
        Column("ROWS", lambda t: f"{t.rows:,}", right=True),
        Column("FILES", lambda t: f"{t.files:,}", right=True),
        Column("BYTES", lambda t: f"{t.bytes:,}", right=True),
        Column("FIRST", lambda t: "" if t.first_day is None else f"{t.first_day}"),
        Column("LAST", lambda t: "" if t.last_day is None else f"{t.last_day}"),
        Column("VERSION", lambda t: f"{t.version:,}", right=True),
    ]
    with _reading(session, flags) as objects:
        found = list(_tables(objects))
    hint = "angelia pipeline run archive receipts"
    show_list(session, pages_of(found), columns, nothing=f"no tables yet in {objects.root}", hint=hint)


def query(session: CommandContext, text: str, flags: PipelineFlags) -> None:
    """Runs a query, and shows its first rows."""
    pipeline_environment.require_pipeline()
    statement = _statement(text)
    from pyspark.errors import AnalysisException, ParseException

    from angelia.pipeline.lake import listing
    from angelia.pipeline.lake.tables import TABLES
    from angelia.pipeline.session import session as spark_session

    where = flags.spark(session)
    limit = session.shared.limit or PAGE
    with ExitStack() as stack:
        objects = stack.enter_context(_reading(session, flags))
        pipeline_environment.check_archive_reach(session, where, objects)
        stack.enter_context(pipeline_environment.private())
        progress = stack.enter_context(JobProgressDisplay(session.out, "sql"))
        progress.stage(f"starting Spark, {where}")
        rows = sum(listing.row_count(objects, table) for table in TABLES.values())
        spark = stack.enter_context(spark_session(where, "sql", rows))
        progress.started(spark)
        names = _register(spark, objects)
        try:
            found = spark.sql(statement).limit(limit + 1).toArrow().to_pylist()
        except (AnalysisException, ParseException) as error:
            raise _not_understood(error, names) from error
    shown = [
        {name: value.hex() if isinstance(value, bytes) else value for name, value in row.items()}
        for row in found[:limit]
    ]
    if not shown:
        session.out.note("no rows")
    session.out.rows(shown, [_column(name) for name in (shown[0] if shown else ())])
    if len(found) > limit:
        session.out.note(f"{limit:,} shown, and there are more; -n {limit * 10} shows more")


def write_report(session: CommandContext, out: Path, flags: PipelineFlags, *, browse: bool) -> None:
    """Writes the report, one page of HTML that needs no other file."""
    with _reading(session, flags) as objects:
        from angelia.pipeline.report import page as report_page
        from angelia.stores.private_files import write_private

        page = report_page(objects, session.settings, datetime.now(UTC))
    write_private(out.absolute(), page.encode())
    charts, size = page.count('class="wide"'), len(page.encode())  # each chart is drawn for narrow screens, too
    record = {"path": str(out), "charts": charts, "bytes": size}
    session.out.done(record, f"wrote {out} ({counted(charts, 'chart')}, {size // 1000:,} kB, no outside requests)")
    if browse and not webbrowser.open(out.resolve().as_uri()):
        session.out.note("there is no browser here; open the file yourself")


@contextmanager
def _reading(session: CommandContext, flags: PipelineFlags) -> Iterator[Objects]:
    """The archive, if it can be read; says so if it is a simulated one."""
    pipeline_environment.require_pipeline()
    from angelia.pipeline.lake.commit import is_simulated
    from angelia.pipeline.lake.write_probe import check_answers

    objects = flags.archive(session.settings)
    with pipeline_environment.errors_in_one_sentence(session, "-v shows where it happened"):
        check_answers(objects)
        if flags.simulated:
            pipeline_environment.require_simulated(objects)
        if is_simulated(objects):
            session.out.note(f"simulated: nothing in {objects.root} ever happened")
        yield objects


def _tables(objects: Objects) -> Iterator[ArchiveTable]:
    from angelia.pipeline.lake import commit, listing
    from angelia.pipeline.lake.tables import TABLES

    made_up = commit.is_simulated(objects)
    for table in TABLES.values():
        found = listing.find(objects, table)
        if found is None:
            continue
        files = listing.files(objects, table)
        days = [file.day for file in files]
        yield ArchiveTable(
            name=table.name,
            rows=sum(file.rows for file in files),
            files=len(files),
            bytes=sum(file.size for file in files),
            first_day=min(days, default=None),
            last_day=max(days, default=None),
            version=found.version(),
            about=table.about,
            simulated=made_up,
        )


def _register(spark: SparkSession, objects: Objects) -> list[str]:
    """Makes every table of the archive known to Spark by its name; one that was never written has no rows."""
    from angelia.pipeline.lake import listing
    from angelia.pipeline.lake.commit import as_in
    from angelia.pipeline.lake.tables import TABLES
    from angelia.pipeline.sources import archive

    for table in (as_in(objects, one) for one in TABLES.values()):
        archive.read(spark, objects, table, listing.files(objects, table)).createOrReplaceTempView(table.name)
    return list(TABLES)


def _statement(text: str) -> str:
    """The statement for Spark. A query is put in brackets, where Spark accepts nothing that changes data."""
    bare = text.strip().rstrip(";")
    first = _FIRST_WORD.match(bare)
    assert first is not None, "the pattern matches the empty string"
    if first[1].lower() in _DESCRIBING:
        return bare
    if first[1].lower() not in _ASKING:
        raise Usage("the archive is asked, not changed: a query begins with SELECT or WITH", hint=_EXAMPLE)
    return f"SELECT * FROM (\n{bare}\n)"  # noqa: S608 - the query is the caller's own


def _not_understood(error: Exception, names: Sequence[str]) -> AngeliaError:
    from angelia.pipeline.spark_errors import raised_by_us, telling

    unknown = "TABLE_OR_VIEW_NOT_FOUND" in str(error)
    hint = f"the tables are {', '.join(names)}" if unknown else _EXAMPLE
    return raised_by_us(error) or Usage(telling(error), hint=hint)


def _column(name: str) -> Column[dict[str, Any]]:
    return Column(name, lambda row: _cell(row[name]), long=True)


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case datetime():
            return full(value)
        case str() | date():
            return str(value)
    return msgspec.json.encode(value).decode()
