"""The data dictionary says what the tables are, all of them, as they are now."""

from __future__ import annotations

from pathlib import Path

from angelia.pipeline.lake.dictionary import page, pages
from angelia.pipeline.lake.tables import AUDIT, RECEIPTS, TABLES

DOCS = Path(__file__).parents[2] / "docs" / "tables"


def test_the_pages_are_what_the_code_says() -> None:
    written = {path.name: path.read_text("utf-8") for path in DOCS.iterdir()}
    assert written == pages(), "python -m angelia.pipeline.lake.dictionary docs/tables"


def test_a_page_has_every_column_with_its_meaning() -> None:
    for table in TABLES.values():
        text = page(table)
        for column in table.columns:
            assert f"| `{column.name}` |" in text
            assert column.about in text


def test_only_the_table_that_is_never_rewritten_says_so() -> None:
    assert "only added" in page(AUDIT)
    assert "only added" not in page(RECEIPTS)
