"""Files that are handed to people: Parquet, or a JSON document a line. Nobody but their owner reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import IO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

FORMATS = ("parquet", "jsonl")


class Sink:
    """One file of rows of one schema."""

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines
        self.rows = 0

    @classmethod
    @contextmanager
    def open(cls, directory: Path, kind: str, schema: pa.Schema, format: str) -> Iterator[Sink]:
        """A new file, named by its kind and format; on disk when this ends."""
        descriptor = os.open(directory / f"{kind}.{format}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            lines: _Lines = _Parquet(file, schema) if format == "parquet" else _Json(file)
            sink = cls(lines)
            yield sink
            lines.close()
            file.flush()
            os.fsync(file.fileno())

    def add(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self._lines.add(rows)
            self.rows += rows.num_rows


class _Lines(Protocol):
    def add(self, rows: pa.Table) -> None: ...
    def close(self) -> None: ...


class _Parquet:
    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(file, schema, compression="zstd")

    def add(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)

    def close(self) -> None:
        self._writer.close()


class _Json:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def add(self, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            self._file.write(json.dumps(row, ensure_ascii=False, default=_plain).encode() + b"\n")

    def close(self) -> None:
        """Every line is written already."""


def _plain(value: object) -> str:
    """Times as ISO 8601, bytes in hex."""
    if isinstance(value, bytes):
        return value.hex()
    assert isinstance(value, date | datetime), type(value)
    return value.isoformat()
