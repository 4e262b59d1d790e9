"""What is in the archive: its tables, questions to them, and the page of what analytics found."""

from __future__ import annotations

import re
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from angelia.cli import pipeline_place
from angelia.cli.command_context import Session
from angelia.cli.errors import Usage
from angelia.cli.flags import PAGE
from angelia.cli.paging import pages_of, show_list
from angelia.cli.pipeline_faults import in_our_words
from angelia.cli.pipeline_progress import Shown
from angelia.cli.tables import Column, counted
from angelia.cli.times import full
from angelia.errors import AngeliaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from angelia.stores.objects import Objects

_BLANK = re.compile(r"(?:[\s(]|--[^\n]*\n|/\*.*?\*/)*", re.DOTALL)  # what may stand before the first word
_ASKING = ("select", "with", "from", "values", "table")
_DESCRIBING = ("describe", "desc", "show", "explain")


class TableLine(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the archive, as its log says."""

    name: str
    rows: int
    files: int
    bytes: int
    first_day: date | None
    last_day: date | None
    version: int
    about: str
    simulated: bool


def list_tables(session: Session, lake: str | None, *, simulated: bool) -> None:
    """Tables that were written, and how large they are."""
    pipeline_place.require_pipeline()
    objects = pipeline_place.archive(session.settings, lake, simulated=simulated)
    columns: list[Column[TableLine]] = [
        Column("NAME", lambda t: t.name),
        Column("ROWS", lambda t: f"{t.rows:,}", right=True),
        Column("FILES", lambda t: f"{t.files:,}", right=True),
        Column("BYTES", lambda t: f"{t.bytes:,}", right=True),
        Column("FIRST", lambda t: "" if t.first_day is None else f"{t.first_day}"),
        Column("LAST", lambda t: "" if t.last_day is None else f"{t.last_day}"),
        Column("VERSION", lambda t: f"{t.version:,}", right=True),
    ]
    with _reading(session, objects, simulated=simulated):
        found = _tables(objects)
    hint = "angelia pipeline run archive receipts"
    show_list(session, pages_of(found), columns, nothing=f"no tables yet in {objects.root}", hint=hint)


def query(
    session: Session,
    text: str,
    lake: str | None,
    master: str | None,
    remote: str | None,
    conf: Sequence[str],
    *,
    simulated: bool,
) -> None:
    """Ask in SQL, and show the first rows."""
    pipeline_place.require_pipeline()
    statement = _statement(text)
    from pyspark.errors import AnalysisException, ParseException

    from angelia.pipeline.session import session as spark_session

    objects = pipeline_place.archive(session.settings, lake, simulated=simulated)
    where = pipeline_place.spark_at(session, master, remote, conf)
    pipeline_place.check_archive_reach(session, where, objects)
    limit = session.shared.limit or PAGE
    with ExitStack() as stack:
        stack.enter_context(_reading(session, objects, simulated=simulated))
        stack.enter_context(pipeline_place.private())
        progress = stack.enter_context(Shown(session.out, "sql"))
        progress.stage(f"starting Spark, {where}")
        spark = stack.enter_context(spark_session(where, "sql"))
        progress.started(spark)
        names = _register(spark, objects)
        try:
            rows = spark.sql(statement).limit(limit + 1).toArrow().to_pylist()
        except (AnalysisException, ParseException) as error:
            raise _not_understood(error, names) from error
    shown = [{name: _value(value) for name, value in row.items()} for row in rows[:limit]]
    if not shown:
        session.out.note("no rows")
    names_of_columns = list(shown[0]) if shown else []
    session.out.rows(shown, [_column(name) for name in names_of_columns])
    if len(rows) > limit:
        session.out.note(f"{limit:,} shown, and there are more; -n {limit * 10} shows more")


def write_report(session: Session, out: Path, lake: str | None, *, simulated: bool, browse: bool) -> None:
    """One page of HTML that needs nothing but itself."""
    pipeline_place.require_pipeline()
    from angelia.pipeline.report import page as report_page
    from angelia.stores.embedded.private import write_private

    objects = pipeline_place.archive(session.settings, lake, simulated=simulated)
    with _reading(session, objects, simulated=simulated):
        page = report_page(objects, session.settings, datetime.now(UTC))
    write_private(out.absolute(), page.encode())
    charts, size = page.count('class="wide"'), len(page.encode())  # each is drawn for narrow screens, too
    record = {"path": str(out), "charts": charts, "bytes": size}
    session.out.done(record, f"wrote {out} ({counted(charts, 'chart')}, {size // 1000:,} kB, no outside requests)")
    if browse and not webbrowser.open(out.resolve().as_uri()):
        session.out.note("there is no browser here; open the file yourself")


_AGAIN = "-v shows where it happened"
_EXAMPLE = 'angelia pipeline sql "SELECT day, count(*) FROM delivery_receipts GROUP BY day"'


def _tables(objects: Objects) -> list[TableLine]:
    from angelia.pipeline.lake import commit, listing
    from angelia.pipeline.lake.tables import TABLES

    lines, made_up = [], commit.is_simulated(objects)
    for table in TABLES.values():
        found = commit.find(objects, table)
        if found is None:
            continue
        files = listing.files(objects, table)
        days = [file.day for file in files]
        lines.append(
            TableLine(
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
        )
    return lines


def _register(spark: SparkSession, objects: Objects) -> list[str]:
    """Every table of the archive under its name; those that were never written have no rows."""
    from angelia.pipeline.lake.commit import as_in
    from angelia.pipeline.lake.tables import TABLES
    from angelia.pipeline.sources import archive

    for table in (as_in(objects, one) for one in TABLES.values()):
        archive.read(spark, objects, table, archive.files(objects, table)).createOrReplaceTempView(table.name)
    return list(TABLES)


@contextmanager
def _reading(session: Session, objects: Objects, *, simulated: bool) -> Iterator[None]:
    """Faults of the archive in our words; a store that cannot be read is told from the beginning, and so is that it is
    a simulated one."""
    from angelia.pipeline.lake.commit import is_simulated
    from angelia.pipeline.lake.write_probe import check_answers

    with in_our_words(session, _AGAIN):
        check_answers(objects)
        if simulated:
            pipeline_place.require_simulated(objects)
        if is_simulated(objects):
            session.out.note(f"simulated: nothing in {objects.root} ever happened")
        yield


def _statement(text: str) -> str:
    """What Spark is asked. In brackets nothing but a query is understood, whatever it begins with."""
    bare = text.strip().rstrip(";")
    blank = _BLANK.match(bare)
    assert blank is not None, "it matches nothing, too"
    first = re.match(r"\w*", bare[blank.end() :])
    assert first is not None
    if first[0].lower() in _DESCRIBING:
        return bare
    if first[0].lower() not in _ASKING:
        raise Usage("the archive is asked, not changed: a query begins with SELECT or WITH", hint=_EXAMPLE)
    return f"SELECT * FROM (\n{bare}\n)"  # noqa: S608 - what somebody asks is theirs to say


def _not_understood(error: Exception, names: Sequence[str]) -> AngeliaError:
    from angelia.pipeline.spark_errors import raised_by_us, telling

    unknown = "TABLE_OR_VIEW_NOT_FOUND" in str(error)
    hint = f"the tables are {', '.join(names)}" if unknown else _EXAMPLE
    return raised_by_us(error) or Usage(telling(error), hint=hint)


def _value(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


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
