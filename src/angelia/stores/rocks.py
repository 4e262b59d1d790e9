"""RocksDB through rocksdict: families, atomic synced batches, and iterators that keep to what was there when they were
opened. One process opens a database.

Iterators only, no snapshots: iteration over a snapshot of rocksdict 0.3.29 shows later writes. A family keeps the lock
of the database, so all are dropped before it closes.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import structlog
from rocksdict import (
    BlockBasedOptions,
    Cache,
    ColumnFamily,
    CompactOptions,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from angelia.errors import DamagedRecord, DiskFull, ReadOnly, StartFailed, Unavailable

_CACHE_BYTES = 64 << 20
_BLOOM_BITS = 10
_OPEN_FILES = 512
_LOG_FILES = 4
_MEMTABLE_BYTES = 16 << 20  # of each family: what a flush needs on a disk that is nearly full
_WAL_BYTES = 256 << 20
_LOCK_SECONDS = 10.0
_BEHIND_ALL = b"\xff" * 64
log = structlog.get_logger(__name__)


class RocksBatch:
    """Writes that happen together or not at all."""

    __slots__ = ("_families", "_writes", "operations")

    def __init__(self, families: dict[str, ColumnFamily]) -> None:
        self._families = families
        self._writes = WriteBatch(raw_mode=True)
        self.operations = 0

    def put(self, family: str, key: bytes, value: bytes) -> None:
        self._writes.put(key, value, self._families[family])
        self.operations += 1

    def delete(self, family: str, key: bytes) -> None:
        self._writes.delete(key, self._families[family])
        self.operations += 1

    def delete_range(self, family: str, first: bytes, end: bytes) -> None:
        """Deletes the keys from `first` up to `end`, which is not one of them."""
        self._writes.delete_range(first, end, self._families[family])
        self.operations += 1


class RocksIterator:
    """An iterator that keeps to a range of keys; its key is None where it has ended.

    Of rocksdict 0.3.29 only the upper bound can be used, as long as its options live: `set_iterate_lower_bound` sets
    the upper one as well. Only a seek backward passes the lower bound, so that is where it is looked at.
    """

    __slots__ = ("_first", "_options", "_seek_for_prev", "key", "next", "seek", "status", "valid", "value")

    def __init__(self, iterator: RdictIter, options: ReadOptions, first: bytes) -> None:
        self._options = options
        self._first = first
        self._seek_for_prev = iterator.seek_for_prev
        self.valid = iterator.valid
        self.key = iterator.key
        self.value = iterator.value
        self.next = iterator.next
        self.seek = iterator.seek
        self.status = iterator.status

    def seek_for_prev(self, key: bytes) -> bool:
        """Sets it onto the last key up to this one. Returns whether that is in its range."""
        self._seek_for_prev(key)
        return self.valid() and self.key() >= self._first


class Rocks:
    """An open database."""

    def __init__(self, path: Path, families: Sequence[str]) -> None:
        cache = Cache(_CACHE_BYTES)
        self._db = _open_patiently(path, {name: _family_options(cache) for name in families})
        self._families = {name: self._db.get_column_family(name) for name in families}
        self._handles = {name: self._db.get_column_family_handle(name) for name in families}
        self._synced = WriteOptions()
        self._synced.sync = True

    def close(self) -> None:
        """Closes the database. Its iterators must be gone."""
        self._handles.clear()
        families, self._families = list(self._families.values()), {}
        for close in (*(family.close for family in families), self._db.close):
            try:
                close()
            except Exception as error:  # rocksdict raises no other type
                log.exception("the log was not closed cleanly; what was synced is there", error=str(error))

    def get(self, family: str, key: bytes) -> bytes | None:
        with _reading():
            found: bytes | None = self._families[family].get(key)
            return found

    def iterator(self, family: str, first: bytes, end: bytes) -> RocksIterator:
        """An iterator over the keys from `first` up to `end`, which is not one of them; it stands at the first."""
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        with _reading():
            found = self._families[family].iter(options)
            found.seek(first)
            return RocksIterator(found, options, first)

    def batch(self) -> RocksBatch:
        return RocksBatch(self._handles)

    def write(self, batch: RocksBatch) -> None:
        """Writes a batch; on return it is synced."""
        if not batch.operations:
            return
        with _writing():
            self._db.write(batch._writes, self._synced)

    def flush(self, family: str) -> None:
        """Writes what is in memory into a file. Range deletes in memory make each new iterator slow."""
        with _writing():
            self._families[family].flush()

    def compact(self, family: str, first: bytes, end: bytes) -> None:
        """Gives the space of deleted keys back. Takes seconds; reads and writes go on meanwhile."""
        with _writing():
            self._families[family].compact_range(first, end, CompactOptions())

    def bytes_of(self, family: str) -> int:
        """The size of a family, as RocksDB estimates it: its tables and what is still in memory."""
        found = self._families[family]
        tables = found.property_int_value("rocksdb.live-sst-files-size") or 0
        return tables + (found.property_int_value("rocksdb.cur-size-all-mem-tables") or 0)


def check_iterator(iterator: RocksIterator) -> None:
    """Raises if an iterator stopped because of a fault, and not at its end."""
    with _reading():
        iterator.status()


def reads_at(iterator: RocksIterator, key: bytes) -> bool:
    """Sets an iterator onto the first key from this one on. Returns whether that could be read, or there is none."""
    # An iterator of rocksdict 0.3.29 that met damage fails on, unless it was at another place in between.
    iterator.seek(_BEHIND_ALL)
    iterator.seek(key)
    try:
        check_iterator(iterator)
    except DamagedRecord:
        return False
    return True


def _open_patiently(path: Path, families: dict[str, Options]) -> Rdict:
    """Waits for the process that had the database before us, which may be about to end."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return Rdict(str(path), _options(), families)
        except Exception as error:  # rocksdict raises no other type
            if not _is_lock_held(error) or time.monotonic() > deadline:
                raise _start_failed(path, error) from error
        time.sleep(0.05)


def _is_lock_held(error: Exception) -> bool:
    return any(words in str(error) for words in ("lock file", "/LOCK", "Resource temporarily unavailable"))


def _is_full(text: str) -> bool:
    return "No space left" in text or os.strerror(errno.EDQUOT) in text


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())  # a torn tail is cut, never a hole in the middle
    options.set_max_open_files(_OPEN_FILES)
    options.set_keep_log_file_num(_LOG_FILES)
    options.set_max_background_jobs(2)
    options.set_max_total_wal_size(_WAL_BYTES)
    return options


def _family_options(cache: Cache) -> Options:
    options = Options(raw_mode=True)
    options.set_compression_type(DBCompressionType.none())  # ciphertext
    options.set_write_buffer_size(_MEMTABLE_BYTES)
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_bloom_filter(_BLOOM_BITS, False)
    options.set_block_based_table_factory(table)
    return options


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # rocksdict raises no other type
        if "Corruption" in str(error):
            raise DamagedRecord("a part of the log is damaged on the disk", hint="other nodes have it") from error
        raise Unavailable(f"the log cannot be read: {error}", retry_after=10) from error


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # rocksdict raises no other type
        text = str(error)
        if _is_full(text):
            raise DiskFull("the node's disk is full", hint="nothing was stored", retry_after=5) from error
        if "IO error" in text or "Corruption" in text:
            raise ReadOnly(f"the log cannot be written: {text}", retry_after=60) from error
        raise Unavailable(f"RocksDB: {text}") from error


def _start_failed(path: Path, error: Exception) -> StartFailed | DiskFull:
    if _is_full(str(error)):
        return DiskFull(f"the disk of the log {path} is full", hint="make room on it", retry_after=30)
    if _is_lock_held(error):
        return StartFailed(f"another process has the log {path} open", hint="one process runs a spool's data directory")
    return StartFailed(f"the log {path} cannot be opened: {error}", hint="restore the directory from a back-up")
