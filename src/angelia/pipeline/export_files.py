"""Files of an export: Parquet, or one JSON document a line, readable by their owner alone."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

FORMATS = ("parquet", "jsonl")


@contextmanager
def private_file(path: Path) -> Iterator[IO[bytes]]:
    """A new file that its owner alone can read; on disk when this ends."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


class ExportFile:
    """One file of rows of one schema."""

    def __init__(self, write: Callable[[pa.Table], None]) -> None:
        self._write = write
        self.rows = 0

    @classmethod
    @contextmanager
    def open(cls, directory: Path, kind: str, schema: pa.Schema, format: str) -> Iterator[ExportFile]:
        """A new file, named by its kind and format; on disk when this ends."""
        with private_file(directory / f"{kind}.{format}") as file:
            if format == "parquet":
                with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                    yield cls(writer.write_table)
            else:
                yield cls(functools.partial(_write_lines, file))

    def add(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self._write(rows)
            self.rows += rows.num_rows


def _write_lines(file: IO[bytes], rows: pa.Table) -> None:
    for row in rows.to_pylist():
        file.write(json.dumps(row, ensure_ascii=False, default=_plain).encode() + b"\n")


def _plain(value: object) -> str:
    """Times as ISO 8601, bytes in hex."""
    if isinstance(value, bytes):
        return value.hex()
    assert isinstance(value, date | datetime), type(value)
    return value.isoformat()
