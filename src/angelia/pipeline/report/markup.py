"""Tables and sections of the report, as HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from html import escape
from typing import TypeVar

from matplotlib.axes import Axes

from angelia.pipeline.report.svg import drawn

T = TypeVar("T")


def chart(
    contents: T,
    draw: Callable[[T, Axes, bool], None],
    title: Callable[[T], str],
    table: Callable[[T], str],
    height: float = 2.5,
) -> str:
    """A section named like the function that draws its chart."""
    name = draw.__name__
    return (
        f'<section><h2 id="{name}">{escape(title(contents))}</h2>'
        f'<div role="img" aria-labelledby="{name}">{drawn(name, partial(draw, contents), height)}</div>'
        f"<details><summary>As a table</summary>{table(contents)}</details></section>"
    )


def html_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of HTML; untrusted text in its cells is escaped by the caller."""
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in row[1:]) + "</tr>" for row in rows
    )
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
