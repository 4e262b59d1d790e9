"""Queues, partitions and consumer groups by name. A process remembers what it read; the functions of the ledger say
when that is outdated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import msgspec
import structlog

from angelia.audit import service as audit
from angelia.errors import Conflict, InvalidArgument
from angelia.queues import store
from angelia.queues.model import DEFAULT, Options, Partition, Queue, changed_options, check_name, scope_of
from angelia.queues.news import News
from angelia.queues.payloads import EncryptionUnavailable, Payloads
from angelia.stores.ledger import Ledger

_MOST_KNOWN = 100_000
_NONE: Mapping[str, Partition] = {}
log = structlog.get_logger(__name__)


class Configured(msgspec.Struct, frozen=True):
    """A queue after it was configured, its Default partition, and the options that are in effect."""

    queue: Queue
    default: Partition
    options: Options


class Catalog:
    """The queues of the ledger, as this process knows them."""

    def __init__(self, ledger: Ledger, payloads: Payloads, news: News) -> None:
        self._ledger = ledger
        self._payloads = payloads
        self._news = news
        self._partitions: dict[str, dict[str, Partition]] = {}  # by queue and name
        self._by_id: dict[UUID, Partition] = {}
        self._by_no: dict[int, Partition] = {}
        self._groups: dict[tuple[str, str], tuple[int, int]] = {}  # numbers of queue and group

    async def queue(self, name: str) -> Queue | None:
        async with self._ledger.lookups() as tx:
            return await store.queue(tx, name)

    async def queues_of(self, namespace: str | None, task: str | None) -> list[Queue]:
        async with self._ledger.reading() as tx:
            return await store.queues_of(tx, namespace, task)

    async def partition(self, queue: str, partition: str) -> Partition | None:
        found = await self._found([(queue, partition)])
        return found.get((queue, partition))

    async def made(self, names: Iterable[tuple[str, str]], now: datetime) -> dict[tuple[str, str], Partition]:
        """Partitions by the names of queue and partition. Those that are missing are made, and so are their queues."""
        wanted = list(dict.fromkeys(names))
        found = await self._found(wanted)
        missing = dict[str, list[str]]()
        for queue, partition in wanted:
            if (queue, partition) not in found:
                missing.setdefault(queue, []).append(partition)
        for queue, partitions in missing.items():
            await self._make(queue, partitions, now)
        if missing:
            found = await self._found(wanted)
        return found

    async def by_id(self, ids: Iterable[UUID]) -> dict[UUID, Partition]:
        """The partitions with these ids, as far as they exist."""
        wanted = set(ids)
        found = {one: self._by_id[one] for one in wanted if one in self._by_id}
        if len(found) < len(wanted):
            async with self._ledger.lookups() as tx:
                for partition in await store.partitions_by_id(tx, list(wanted - found.keys())):
                    self._remember(partition)
                    found[partition.partition_id] = partition
        return found

    async def by_no(self, numbers: Iterable[int]) -> dict[int, Partition]:
        """The partitions with these numbers, as far as they exist."""
        wanted = set(numbers)
        found = {one: self._by_no[one] for one in wanted if one in self._by_no}
        if len(found) < len(wanted):
            async with self._ledger.lookups() as tx:
                for partition in await store.partitions_by_no(tx, list(wanted - found.keys())):
                    self._remember(partition)
                    found[partition.partition_no] = partition
        return found

    async def group(self, queue: Queue, name: str) -> int | None:
        """The number of a consumer group of a queue; None if no consumer has used it yet."""
        queue_no, known = self._groups.get((queue.name, name), (0, 0))
        if queue_no == queue.queue_no:
            return known
        async with self._ledger.lookups() as tx:
            found = await store.group(tx, queue.queue_no, name)
        if found is not None:
            if len(self._groups) >= _MOST_KNOWN:
                self._groups.clear()
            self._groups[queue.name, name] = (queue.queue_no, found)
        return found

    async def joined(
        self, queue: Queue, name: str, mode: str | None, from_at: datetime | None, now: datetime
    ) -> int | None:
        """The number of a consumer group. Its first pop makes it, and fixes where it begins. None if the queue was
        deleted."""
        known = await self.group(queue, name)
        if known is None:
            begins = "time" if from_at is not None else mode or "all"
            async with self._ledger.transaction() as tx:
                if begins == "new" and await store.was_expected(tx, queue.name, name):
                    begins = "all"
                at = now if begins == "new" else from_at
                await store.make_group(tx, queue, name, begins, at, now)
            known = await self.group(queue, name)
        return known

    async def expect(self, queue: str, group: str, now: datetime) -> None:
        """Remembers that a consumer group wants the new messages of a queue that does not exist: all that it will
        have, whichever process serves the next pop."""
        async with self._ledger.statement() as tx:
            await store.expect(tx, queue, group, now)

    async def configure(
        self,
        name: str,
        now: datetime,
        options: dict[str, Any],
        *,
        namespace: str | None = None,
        task: str | None = None,
        partition: str | None = None,
        by: str = "anonymous",
    ) -> Configured:
        """Makes a queue or changes it: options that are not named stay. With a partition, its options in place of the
        queue's."""
        check_name(name, "queue")
        for text, what in ((namespace, "namespace"), (task, "task"), (partition, "partition")):
            if text:
                check_name(text, what)
        changes = changed_options({}, options)
        if changes.get("encryptionEnabled"):
            await self._check_encryption(now)
        async with self._ledger.transaction() as tx:
            await store.make_queue(tx, uuid4(), name, namespace or "", task or "", now, Options())
            names = [DEFAULT] if partition is None else [DEFAULT, partition]
            await store.make_partitions(tx, name, [uuid4() for _ in names], names, now)
            queue = await store.lock_queue(tx, name)
            if queue is None:
                raise Conflict("the queue was deleted in this moment", hint="try again")
            kept = msgspec.to_builtins(queue.options)
            options = kept if partition is not None else kept | changes
            scope = (queue.namespace if namespace is None else namespace, queue.task if task is None else task)
            if partition is not None:
                await store.change_partition(tx, queue.queue_no, partition, changes)
            # Clients configure their queues at each start. What stays as it is concerns no other process.
            changed = partition is not None or options != kept or scope != (queue.namespace, queue.task)
            if changed:
                queue = await store.change_queue(tx, queue.queue_no, *scope, options)
            detail = {**changes, **({"partition": partition} if partition is not None else {})}
            await audit.record(tx, [audit.event("queue_configured", now, actor=by, object=name, detail=detail)])
        if changed:
            self.forget_queue(name)
            await self._news.changed(queue)
            if changes.get("encryptionEnabled") and (partition is not None or not kept["encryptionEnabled"]):
                log.info("encryption.enabled", queue=name, partition=partition, key_id=str(self._payloads.key_id))
        found = await self._found([(name, one) for one in names])
        if len(found) < len(names):
            raise Conflict("the queue was deleted in this moment", hint="try again")
        effective = queue.options if partition is None else found[name, partition].options
        return Configured(queue, found[name, DEFAULT], effective)

    def forget_queue(self, name: str) -> None:
        """Its rows are read again when they are needed."""
        for known in self._partitions.pop(name, {}).values():
            self._by_id.pop(known.partition_id, None)
            self._by_no.pop(known.partition_no, None)

    def forget_group(self, queue: str, name: str) -> None:
        self._groups.pop((queue, name), None)

    async def _found(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Partition]:
        found = dict[tuple[str, str], Partition]()
        for queue, name in names:
            partition = self._partitions.get(queue, _NONE).get(name)
            if partition is not None:
                found[queue, name] = partition
        unknown = [one for one in names if one not in found]
        if unknown:
            async with self._ledger.lookups() as tx:
                for partition in await store.partitions(tx, unknown):
                    self._remember(partition)
                    found[partition.queue.name, partition.name] = partition
        return found

    async def _make(self, queue: str, partitions: Sequence[str], now: datetime) -> None:
        namespace, task = scope_of(queue)
        async with self._ledger.transaction() as tx:
            await store.make_queue(tx, uuid4(), queue, namespace, task, now, Options())
            await store.make_partitions(tx, queue, [uuid4() for _ in partitions], partitions, now)

    def _remember(self, partition: Partition) -> None:
        if len(self._by_no) >= _MOST_KNOWN:
            self._partitions.clear()
            self._by_id.clear()
            self._by_no.clear()
        self._partitions.setdefault(partition.queue.name, {})[partition.name] = partition
        self._by_id[partition.partition_id] = partition
        self._by_no[partition.partition_no] = partition

    async def _check_encryption(self, now: datetime) -> None:
        try:
            await self._payloads.ready(now)
        except EncryptionUnavailable as error:
            raise InvalidArgument(f"encryptionEnabled: {error.message}", hint=error.hint) from error
