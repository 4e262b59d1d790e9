"""Queues as a machine: whatever is done in whatever order, by any process, the service does what the model does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from angelia.errors import Conflict, NotFound
from angelia.queues.dead_letters_store import LetterFilter
from angelia.queues.model import Ack, PopRequest, PushItem, PushResult, QueueDelivery
from angelia.queues.slice import QueuesSlice
from angelia.queues.stamps import stamp
from keyholder import whole_ms
from queues.conftest import queue_process
from queues.queue_model import QUEUE_MODE, Cursor, Partition, Queue, Rules, Sent, extend

PARTITIONS = ("Default", "left", "right")
GROUPS = (QUEUE_MODE, "readers", "writers")
# No sum of a few of these is the end of a lease or of a delay to the millisecond.
TICK = timedelta(milliseconds=13)
WAITS = (1, 3, 6, 11, 31, 62, 130, 301, 700)
STATUSES = ("completed", "completed", "completed", "failed", "failed", "retry", "dlq")
examples = count(1)
which = st.integers(0, 30)
rules = (
    st.builds(
        Rules,
        lease_time=st.sampled_from((30, 30, 0)),
        retry_limit=st.sampled_from((0, 1, 2)),
        retry_delay=st.sampled_from((0, 0, 2000)),
        priority=st.sampled_from((0, 0, 1)),
        delayed_processing=st.sampled_from((0, 0, 0, 5)),
        max_size=st.sampled_from((0, 0, 0, 6)),
    )
    | st.builds(
        Rules,
        lease_time=st.just(30),
        retry_limit=st.sampled_from((0, 2)),
        retry_delay=st.just(0),
        window_buffer=st.sampled_from((0, 10)),
        retention_enabled=st.booleans(),
        retention_seconds=st.sampled_from((0, 600)),
        completed_retention_seconds=st.sampled_from((0, 100)),
    )
    | st.builds(
        Rules,
        lease_time=st.sampled_from((30, 90)),
        retry_limit=st.sampled_from((0, 2)),
        retry_delay=st.just(0),
        max_wait_time_seconds=st.sampled_from((0, 60, 60)),
        retention_enabled=st.booleans(),
        retention_seconds=st.sampled_from((0, 600)),
    )
)


def wire_options(chosen: Rules) -> dict[str, Any]:
    """The options by their names on the wire."""
    named = {one.name: one.name.split("_") for one in fields(chosen)}
    return {
        head + "".join(part.capitalize() for part in rest): getattr(chosen, name)
        for name, (head, *rest) in named.items()
    }


@dataclass
class World:
    """Two processes on the same stores, and a loop for them. A crash replaces the second one."""

    runner: asyncio.Runner
    database_url: str
    redis_url: str
    directory: Path
    processes: list[QueuesSlice] = field(default_factory=list)
    _open: list[AsyncExitStack] = field(default_factory=list)

    async def start_process(self) -> None:
        stack = AsyncExitStack()
        started = queue_process(self.database_url, self.redis_url, self.directory)
        self.processes.append((await stack.enter_async_context(started)).slices.queues)
        self._open.append(stack)

    async def end_process(self) -> None:
        self.processes.pop()
        await self._open.pop().aclose()


@pytest.fixture(scope="module")
def world(shared_database: str, stores: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with asyncio.Runner() as runner:
        world = World(runner, shared_database, stores.redis_url, tmp_path_factory.mktemp("queues"))
        for _ in range(2):
            runner.run(world.start_process())
        yield world
        while world.processes:
            runner.run(world.end_process())


@dataclass
class Held:
    """A batch of one partition, as a consumer got it."""

    queue: Queue
    partition: Partition
    group: str
    lease_id: str
    messages: list[Sent]


class QueueMachine(RuleBasedStateMachine):
    """Two queues, three partitions each, three consumer groups, and a clock that only the machine moves."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.now = whole_ms(datetime.now(UTC))
        self.namespace = f"example-{next(examples)}"
        self.queues: list[Queue] = []
        self.process = self.world.processes[0]
        self.partition_ids: dict[tuple[str, str], UUID] = {}
        self.held: list[Held] = []
        self.message_ids: dict[tuple[str, str, int], str] = {}
        self.payloads = count(1)
        self.steps = 0
        self.unsure = False  # whether news of another process may still be on its way to this one

    def run(self, work: Any) -> Any:
        return self.world.runner.run(work)

    @initialize(chosen=st.tuples(rules, rules))
    def configure_queues(self, chosen: tuple[Rules, Rules]) -> None:
        for task, its in zip(("buy", "sell"), chosen, strict=True):
            queue = Queue(f"{self.namespace}.{task}", its, self.namespace, task)
            queue.partition("Default")
            self.queues.append(queue)
            self._configure(queue)

    def _configure(self, queue: Queue) -> None:
        self.run(
            self.process.catalog.configure(
                queue.name, self.now, wire_options(queue.rules), namespace=queue.namespace, task=queue.task
            )
        )

    # What producers do.

    @rule(
        items=st.lists(
            st.tuples(st.integers(0, 1), st.sampled_from(PARTITIONS), st.none() | st.integers(0, 12)),
            min_size=1,
            max_size=5,
        )
    )
    def push(self, items: list[tuple[int, str, int | None]]) -> None:
        sent = [
            PushItem(
                queue=self.queues[queue].name,
                partition=partition,
                payload=msgspec.Raw(str(next(self.payloads)).encode()),
                transaction_id=None if name is None else f"id {name}",
            )
            for queue, partition, name in items
        ]
        answers = self.run(self.process.pushes.push(sent, "producer", self.now))
        assert len(answers) == len(sent)
        refused = set[int]()
        for (number, _, _), item, answer in zip(items, sent, answers, strict=True):
            if answer.status == "failed":
                assert "max capacity" in (answer.error or "")
                assert self.queues[number].partition(item.partition).find(answer.transaction_id) is None
                refused.add(number)
            else:
                self._expect_pushed(self.queues[number], item, answer)
        for number in refused:
            queue = self.queues[number]
            assert 0 < queue.rules.max_size <= queue.unsettled(), "there is room"

    def _expect_pushed(self, queue: Queue, item: PushItem, answer: PushResult) -> None:
        assert answer.queue == queue.name
        assert item.transaction_id in (None, answer.transaction_id)
        first = queue.partition(item.partition).find(answer.transaction_id)
        if queue.rules.max_size and first is None:
            waiting = queue.figures(self.now)["pending"] - sum(one.late(self.now) for one in queue.partitions.values())
            assert waiting < queue.rules.max_size, "there is no room"
        status, message = queue.push(item.partition, answer.transaction_id, self.now)
        assert answer.status == status
        id_ = self.message_ids.setdefault((queue.name, item.partition, message.number), answer.message_id)
        assert answer.message_id == id_
        if answer.partition_id is not None:
            partition_id = UUID(answer.partition_id)
            assert self.partition_ids.setdefault((queue.name, item.partition), partition_id) == partition_id

    # What consumers do.

    @rule(
        queue=st.integers(0, 1),
        partition=st.none() | st.sampled_from(PARTITIONS),
        group=st.sampled_from(GROUPS),
        batch=st.integers(1, 6),
        partitions=st.integers(1, 3),
        auto_ack=st.sampled_from((False, False, False, True)),
        mode=st.sampled_from((None, None, "all", "new", "time")),
    )
    def pop(
        self,
        queue: int,
        partition: str | None,
        group: str,
        batch: int,
        partitions: int,
        auto_ack: bool,
        mode: str | None,
    ) -> None:
        if partition is not None:
            partitions = 1
            if partition not in self.queues[queue].partitions:
                return
        self._pop([self.queues[queue]], partition, group, batch, partitions, auto_ack, mode)

    @rule(
        task=st.sampled_from((None, "buy")),
        group=st.sampled_from(GROUPS),
        batch=st.integers(1, 6),
        partitions=st.integers(1, 3),
    )
    def pop_from_any_queue(self, task: str | None, group: str, batch: int, partitions: int) -> None:
        queues = [one for one in self.queues if task in (None, one.task)]
        self._pop(queues, None, group, batch, partitions, False, None, namespace=self.namespace, task=task)

    def _pop(
        self,
        queues: list[Queue],
        partition: str | None,
        group: str,
        batch: int,
        partitions: int,
        auto_ack: bool,
        mode: str | None,
        **others: Any,
    ) -> None:
        if group == QUEUE_MODE:
            mode = None  # routes ignore it: this group begins with the oldest message
        from_at = self.now - timedelta(seconds=20) if mode == "time" else None
        request = PopRequest(
            queue=None if others else queues[0].name,
            partition=partition,
            namespace=others.get("namespace"),
            task=others.get("task"),
            group=group,
            batch=batch,
            partitions=partitions,
            auto_ack=auto_ack,
            mode=mode if mode in ("all", "new") else None,
            from_at=from_at,
        )
        for queue in queues:
            queue.join(group, mode, from_at)
        candidates = [
            (queue, one) for queue in queues for one in queue.partitions.values() if partition in (None, one.name)
        ]
        self._expect(self.run(self.process.claims.pop(request, self.now)), candidates, request)

    def _expect(
        self, got: QueueDelivery | None, candidates: list[tuple[Queue, Partition]], request: PopRequest
    ) -> None:
        """The pop was allowed to choose as it did, took all that it could there, in order, and did not come back empty
        while there was something."""
        group = request.group
        could = {
            (queue.name, one.name): (queue, one, found)
            for queue, one in candidates
            if (found := one.deliverable(group, self.now))
        }
        room, claimed = request.batch, 0
        for key, batch in self._by_partition(got).items():
            assert key in could, f"{key} has nothing to deliver"
            queue, partition, found = could.pop(key)
            assert self.unsure or queue.rules.priority >= max(
                (q.rules.priority for q, _, _ in could.values()), default=0
            )
            taken = found[:room]
            assert [one[0] for one in batch] == [one.transaction_id for one in taken]
            assert [one[1] for one in batch] == [one.created_at for one in taken]
            for one, (_, _, id_, partition_id) in zip(taken, batch, strict=True):
                assert self.message_ids.setdefault((*key, one.number), id_) == id_
                assert self.partition_ids.setdefault(key, partition_id) == partition_id
            assert got is not None
            assert bool(got.lease_id) is not request.auto_ack
            partition.deliver(group, taken, got.lease_id, self.now)
            self.held.append(Held(queue, partition, group, got.lease_id, taken))
            room -= len(taken)
            claimed += 1
        if got is not None:
            assert (got.group, got.partitions_claimed) == (group, claimed)
        assert claimed <= request.partitions
        assert claimed > 0 or not could, f"{list(could)} were left"

    def _by_partition(self, got: QueueDelivery | None) -> dict[tuple[str, str], list[tuple[str, datetime, str, UUID]]]:
        found: dict[tuple[str, str], list[tuple[str, datetime, str, UUID]]] = {}
        for one in [] if got is None else got.messages:
            entry = (one.transaction_id, one.created_at, one.id, one.partition.partition_id)
            found.setdefault((one.partition.queue.name, one.partition.name), []).append(entry)
        return found

    @precondition(lambda self: self.held)
    @rule(n=which, statuses=st.lists(st.sampled_from((*STATUSES, None)), min_size=1, max_size=6), leased=st.booleans())
    def acknowledge(self, n: int, statuses: list[str | None], leased: bool) -> None:
        """Acknowledges some messages of a batch, perhaps one that was lost long ago, perhaps once more."""
        held = self.held[-1 - n % min(4, len(self.held))]
        self._acknowledge([(held, self._chosen(held, statuses), leased)])

    @precondition(lambda self: len(self.held) > 1)
    @rule(status=st.sampled_from(STATUSES), other=st.sampled_from(STATUSES))
    def acknowledge_two_batches(self, status: str, other: str) -> None:
        first, second = self.held[-1], self.held[-2]
        if (first.partition, first.group) != (second.partition, second.group):
            self._acknowledge(
                [(first, self._chosen(first, [status]), True), (second, self._chosen(second, [other]), True)]
            )

    @precondition(lambda self: self.held)
    @rule(n=which, status=st.sampled_from(("completed", "failed", "dlq")))
    def acknowledge_whole_batch(self, n: int, status: str) -> None:
        held = self.held[-1 - n % min(4, len(self.held))]
        self._acknowledge([(held, [(one, status) for one in held.messages], True)])

    @precondition(lambda self: self.held)
    @rule(status=st.sampled_from(("completed", "failed", "retry", "dlq")))
    def acknowledge_what_does_not_exist(self, status: str) -> None:
        held = self.held[-1]
        unknown = Sent(-1, "never pushed", self.now)
        self._acknowledge([(held, [(unknown, status), (held.messages[0], "completed")], True)])

    @precondition(lambda self: self.held)
    @rule(n=which)
    def fail_until_it_is_dead(self, n: int) -> None:
        """What seldom happens by chance: a consumer fails a batch each time that it comes."""
        held = self.held[-1 - n % min(4, len(self.held))]
        for _ in range(4):
            self._pop([held.queue], held.partition.name, held.group, len(held.messages), 1, False, None)
            again = self.held[-1]
            if again.partition is not held.partition or again.group != held.group:
                return
            self._acknowledge([(again, [(one, "failed") for one in again.messages], True)])
            self.let_time_pass(3)

    @rule(queue=st.integers(0, 1), partition=st.sampled_from(PARTITIONS), group=st.sampled_from(GROUPS))
    def fail_the_second_message_until_it_is_dead(self, queue: int, partition: str, group: str) -> None:
        """The first one is neither completed nor failed, then it fails: its attempts begin with that."""
        chosen = self.queues[queue]
        self.push([(queue, partition, None)] * 2)
        for place in (1, 1, 1, 0):
            self.let_time_pass(31)
            known = len(self.held)
            self._pop([chosen], partition, group, 3, 1, False, None)
            batch = self.held[-1]
            if len(self.held) > known and len(batch.messages) > place:
                self._acknowledge([(batch, [(batch.messages[place], "failed")], True)])

    @rule(queue=st.integers(0, 1), partition=st.sampled_from(PARTITIONS), group=st.sampled_from(GROUPS))
    def work_for_longer_than_messages_may_wait(self, queue: int, partition: str, group: str) -> None:
        self.push([(queue, partition, None)] * 3)
        self.let_time_pass(11)
        self._pop([self.queues[queue]], partition, group, 2, 1, False, None)
        self.extend(0, 400)
        self.let_time_pass(62)
        self.evict()

    @rule(queue=st.integers(0, 1), partition=st.sampled_from(PARTITIONS), group=st.sampled_from(GROUPS))
    def push_a_steady_stream(self, queue: int, partition: str, group: str) -> None:
        """A window buffer may hold messages back for so long, and no longer."""
        if self.queues[queue].rules.window_buffer:
            for _ in range(18):
                self.push([(queue, partition, None)])
                self.let_time_pass(6)
                self._pop([self.queues[queue]], partition, group, 2, 1, True, None)

    def _chosen(self, held: Held, statuses: Sequence[str | None]) -> list[tuple[Sent, str]]:
        pairs = zip(held.messages, [*statuses, *[statuses[-1]] * len(held.messages)], strict=False)
        return [(one, status) for one, status in pairs if status is not None]

    def _acknowledge(self, batches: Sequence[tuple[Held, list[tuple[Sent, str]], bool]]) -> None:
        acks, expected, released = [], [], []
        if any(
            held.group not in held.queue.groups or not chosen or self._is_unsure(held) for held, chosen, _ in batches
        ):
            return
        for held, chosen, leased in batches:
            lease = held.lease_id if leased and held.lease_id else None
            for one, status in chosen:
                acks.append(
                    Ack(
                        transaction_id=one.transaction_id,
                        partition_id=self.partition_ids[held.queue.name, held.partition.name],
                        group=held.group,
                        lease_id=None if lease is None else UUID(lease),
                        status=status,  # type: ignore[arg-type]
                        error=f"{status} at {self.now}",
                    )
                )
            entries = [(one.transaction_id, status, f"{status} at {self.now}") for one, status in chosen]
            answers, ended = held.partition.settle(held.group, lease, entries, self.now)
            expected += answers
            released += [ended] * len(answers)
        answers = self.run(self.process.settlement.ack(acks, self.now))
        assert [one.transaction_id for one in answers] == [one.transaction_id for one in acks]
        for ack, answer, wanted in zip(acks, answers, expected, strict=True):
            assert answer.success is (answer.error is None)
            assert answer.error in wanted.answers, (ack, answer)
            assert answer.dlq is wanted.dlq, (ack, answer)
        assert any(one.lease_released for one in answers) is any(released)

    def _is_unsure(self, held: Held) -> bool:
        """Whether it depends on pops that found nothing what acknowledgments of a batch do."""
        lease = held.partition.cursor(held.group).live_lease(self.now)
        if lease is not None and lease.id == held.lease_id:
            return False
        return held.partition.is_unsure(held.group, self.now)

    @rule(n=which, seconds=st.sampled_from((None, 5, 60, 400)))
    def extend(self, n: int, seconds: int | None) -> None:
        if not self.held:
            return
        held = self.held[-1 - n % min(6, len(self.held))]
        if not held.lease_id:
            return
        got = self.run(self.process.settlement.extend(UUID(held.lease_id), seconds, self.now))
        ends = extend(self._cursors(), held.lease_id, seconds, self.now)
        assert got.renewed == len(ends)
        if ends:
            assert got.error is None
            assert got.expires_at in ends
        else:
            assert got.error in ("Lease not found", "Lease already expired")
            assert got.expires_at is None

    @precondition(lambda self: self.held)
    @rule(n=which, queue=st.integers(0, 1), partition=st.sampled_from(PARTITIONS), name=st.none() | st.integers(0, 12))
    def pass_on(self, n: int, queue: int, partition: str, name: int | None) -> None:
        """A transaction: completes a batch and pushes what came of it, or does neither."""
        held, into = self.held[-1 - n % min(4, len(self.held))], self.queues[queue]
        if not held.lease_id or held.group not in held.queue.groups:
            return
        id_ = None if name is None else f"id {name}"
        item = PushItem(queue=into.name, partition=partition, transaction_id=id_)
        lease = held.partition.cursor(held.group).live_lease(self.now)
        alive = any(
            (one := cursor.live_lease(self.now)) is not None and one.id == held.lease_id
            for cursor, _ in self._cursors()
        )
        if alive and (lease is None or lease.id != held.lease_id):
            return  # of several partitions, this one is settled
        acks = [
            Ack(
                transaction_id=one.transaction_id,
                partition_id=self.partition_ids[held.queue.name, held.partition.name],
                group=held.group,
            )
            for one in held.messages
        ]
        done = self.run(self.process.transactions.run([*acks, item], [UUID(held.lease_id)], "producer", self.now))
        missing = any(held.partition.find(one.transaction_id, held.group) is None for one in held.messages)
        first = None if id_ is None else into.partition(partition).find(id_)
        if not alive or missing or first is not None:
            assert done.error is not None
            assert done.results == []
        elif done.error is not None:
            assert "max capacity" in done.error
            assert into.rules.max_size > 0
        else:
            entries = [(one.transaction_id, "completed", None) for one in held.messages]
            held.partition.settle(held.group, None, entries, self.now)
            self._expect_pushed(into, item, done.results[-1])

    def _cursors(self) -> Iterator[tuple[Cursor, Rules]]:
        for queue in self.queues:
            for partition in queue.partitions.values():
                for cursor in partition.cursors.values():
                    yield cursor, queue.rules

    @rule(seconds=st.none() | st.just(60))
    def extend_what_does_not_exist(self, seconds: int | None) -> None:
        got = self.run(self.process.settlement.extend(uuid4(), seconds, self.now))
        assert (got.renewed, got.expires_at, got.error) == (0, None, "Lease not found")

    # What operators do.

    @rule(queue=st.integers(0, 1), group=st.sampled_from(GROUPS), back=st.none() | st.sampled_from(WAITS))
    def seek(self, queue: int, group: str, back: int | None) -> None:
        chosen = self.queues[queue]
        if group not in chosen.groups:
            return
        time = None if back is None else self.now - timedelta(seconds=back) + TICK / 2
        self.run(self.process.groups.seek(group, chosen.name, time, self.now))
        chosen.seek(group, time)

    @rule(queue=st.integers(0, 1), group=st.sampled_from(GROUPS), partition=st.sampled_from(PARTITIONS))
    def seek_to_the_end_of_a_partition(self, queue: int, group: str, partition: str) -> None:
        chosen = self.queues[queue]
        if group in chosen.groups and partition in chosen.partitions:
            self.run(self.process.groups.seek(group, chosen.name, None, self.now, partition=partition))
            chosen.partitions[partition].cursor(group).start_at(len(chosen.partitions[partition].messages))

    @rule(queue=st.integers(0, 1), partition=st.sampled_from(PARTITIONS))
    def clear(self, queue: int, partition: str) -> None:
        chosen = self.queues[queue]
        if partition in chosen.partitions:
            cleared = self.run(self.process.groups.clear(chosen.name, partition, self.now))
            assert cleared == chosen.partitions[partition].clear(chosen.groups)

    @rule(queue=st.integers(0, 1), partition=st.sampled_from(PARTITIONS), n=which)
    def delete_a_message(self, queue: int, partition: str, n: int) -> None:
        chosen = self.queues[queue].partitions.get(partition)
        if chosen is None or not chosen.messages:
            return
        id_ = chosen.messages[n % len(chosen.messages)].transaction_id
        place = self.partition_ids[self.queues[queue].name, partition]
        try:
            self.run(self.process.messages.delete(place, id_, self.now))
        except Conflict:
            assert chosen.is_leased(id_, self.now)
        except NotFound:
            assert not chosen.forget(id_)
        else:
            assert not chosen.is_leased(id_, self.now)
            assert chosen.forget(id_)

    @rule(queue=st.integers(0, 1), group=st.sampled_from(GROUPS))
    def delete_group(self, queue: int, group: str) -> None:
        self.run(self.process.groups.delete(group, self.queues[queue].name, self.now))
        self.queues[queue].leave(group)

    @rule(queue=st.integers(0, 1), chosen=rules)
    def reconfigure(self, queue: int, chosen: Rules) -> None:
        """All but the longest wait: a pop may or may not have moved the cursor over what waited longer than before."""
        kept = self.queues[queue].rules.max_wait_time_seconds
        if kept:
            chosen = replace(chosen, window_buffer=0, completed_retention_seconds=0)
        self.queues[queue].configure(replace(chosen, max_wait_time_seconds=kept))
        self._configure(self.queues[queue])

    @rule(queue=st.integers(0, 1), n=which)
    def put_back_a_dead_letter(self, queue: int, n: int) -> None:
        chosen = self.queues[queue]
        letters = [(partition, one) for partition in chosen.partitions.values() for one in partition.letters]
        if not letters:
            return
        partition, letter = letters[n % len(letters)]
        same = [one for one in partition.letters if one.transaction_id == letter.transaction_id]
        id_ = self.partition_ids[chosen.name, partition.name]
        try:
            count = self.run(self.process.letters.retry(id_, letter.transaction_id, self.now))
        except Conflict:
            assert 0 < chosen.rules.max_size < chosen.unsettled() + len(same), "there is room"
            return
        assert count == len(same)
        for one in same:
            copy = partition.put_back(one, self.now)
            place = (chosen.name, partition.name)
            self.message_ids[*place, copy.number] = self.message_ids[*place, one.number]

    # What time, ticks and crashes do.

    @rule(seconds=st.sampled_from(WAITS))
    def let_time_pass(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds) + TICK

    @rule()
    def evict(self) -> None:
        while self.run(self.process.eviction.run(self.now)):
            pass
        for queue in self.queues:
            queue.evict(self.now)

    @rule()
    def retain(self) -> None:
        while self.run(self.process.retention.run(self.now)):
            pass
        for queue in self.queues:
            queue.retain(self.now)

    @rule()
    def use_the_other_process(self) -> None:
        first, second = self.world.processes
        self.process = second if self.process is first else first
        self.unsure = True

    @rule()
    def hear_all_news(self) -> None:
        self.unsure = self.unsure and not self.run(self.process.news.caught_up())

    @rule()
    def crash(self) -> None:
        """The work goes on in a process that was just started."""
        self.run(self.world.end_process())
        self.run(self.world.start_process())
        self.process = self.world.processes[1]
        self.unsure = False

    # What always holds.

    @invariant()
    def the_listings_say_what_the_model_says(self) -> None:
        """One queue after each step, for the sake of speed."""
        if self.queues:
            self.steps += 1
            self.run(self._compare(self.queues[self.steps % 2]))

    async def _compare(self, queue: Queue) -> None:
        listed = (await self.process.listings.queue(queue.name, self.now)).partitions
        groups = await self.process.listings.groups(self.now, queue.name)
        letters, _ = await self.process.letters.page(LetterFilter(queue=queue.name), 1000, 0)
        for entry in listed:
            partition = queue.partition(entry.name)
            found, wanted = entry.stats, partition.figures(list(queue.groups), self.now)
            # A pop that found nothing may have moved a cursor over what waits too long, or may not.
            doubtful = partition.late(self.now)
            moved = found.completed - wanted["completed"]
            assert 0 <= moved <= doubtful
            wanted |= {"completed": wanted["completed"] + moved, "pending": wanted["pending"] - moved}
            unsure = sum(partition.is_unsure(group, self.now) for group in queue.groups)
            if 0 < wanted["failed"] - found.failed <= unsure:
                wanted["failed"] = found.failed
            assert msgspec.to_builtins(found) == wanted, partition.name
        assert {entry.name for entry in listed} == queue.partitions.keys()
        late = sum(partition.late(self.now) for partition in queue.partitions.values())
        assert {entry.name for entry in groups} == queue.groups.keys()
        for group in groups:
            assert 0 <= queue.lag(group.name) - group.total_lag <= late, group.name
        dead = [
            (one.partition, one.consumer_group, one.transaction_id, one.error_message, one.retry_count, one.failed_at)
            for one in letters
        ]
        assert sorted(dead) == sorted(
            (partition.name, one.group, one.transaction_id, one.error, one.retry_count, stamp(one.failed_at))
            for partition in queue.partitions.values()
            for one in partition.letters
        )

    def teardown(self) -> None:
        """Nothing that was accepted is lost: when all leases and delays are over, every group gets what it lacks."""
        if not self.queues:
            return
        self.crash()
        self.now += timedelta(seconds=1000)
        for queue in self.queues:
            for group in GROUPS:
                for _ in range(len(queue.partitions) + 1):
                    self._pop([queue], None, group, 1000, 10, True, None)
            assert all(not one.deliverable(group, self.now) for one in queue.partitions.values() for group in GROUPS)
            self.run(self._compare(queue))
            self.run(self.process.groups.delete_queue(queue.name, self.now))


def run_machine(world: World, examples: int, steps: int) -> None:
    class Bound(QueueMachine):
        pass

    Bound.world = world
    run_state_machine_as_test(Bound, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None))


def test_whatever_happens_messages_are_delivered_as_the_model_says(world: World) -> None:
    run_machine(world, 40, 40)


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
def test_whatever_happens_for_a_long_time_messages_are_delivered_as_the_model_says(world: World) -> None:
    run_machine(world, 600, 80)
