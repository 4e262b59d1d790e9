"""The queue contract in plain Python: dicts and lists, one method per call, no store and no concurrency.

A message is known by its number, its place in its partition. A pop may choose between partitions; so the model does not
predict a pop, but says what each partition would deliver (`deliverable`) and records what was delivered (`deliver`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

QUEUE_MODE = "__QUEUE_MODE__"
NOT_FOUND, BAD_LEASE, EXHAUSTED = "Message not found", "Invalid or expired lease", "Retries exhausted"
DONE: Answers = frozenset({None})
REFUSED: Answers = frozenset({BAD_LEASE})

Answers = frozenset[str | None]  # the errors that may be answered; None is success


@dataclass
class Rules:
    """The options of a queue that have a meaning (§7)."""

    lease_time: int = 300
    retry_limit: int = 3
    retry_delay: int = 1000
    priority: int = 0
    delayed_processing: int = 0
    window_buffer: int = 0
    max_size: int = 0
    max_wait_time_seconds: int = 0
    retention_enabled: bool = False
    retention_seconds: int = 0
    completed_retention_seconds: int = 0

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.lease_time or 60)

    @property
    def longest_window(self) -> timedelta:
        """How long a steady stream can keep a message waiting (§12.28)."""
        return timedelta(seconds=self.window_buffer * 10)


@dataclass
class Sent:
    """A message. `only_group`: a dead letter that was put back is there for its consumer group only."""

    number: int
    transaction_id: str
    created_at: datetime
    only_group: str | None = None


@dataclass
class Lease:
    """A claim of one partition for one consumer group; `batch` are the messages that were delivered."""

    id: str
    batch: list[int]
    until: datetime


@dataclass
class Cursor:
    """Where a consumer group is in a partition. Before `position` nothing is delivered again."""

    position: int = 0
    settled: set[int] = field(default_factory=set)  # completed or dead
    attempts: int = 0
    retry_at: datetime | None = None
    lease: Lease | None = None
    ended_leases: list[str] = field(default_factory=list)  # by failed or retry
    knows_ended: bool = False  # that nothing has happened since the last of them ended

    def live_lease(self, now: datetime) -> Lease | None:
        return self.lease if self.lease is not None and self.lease.until > now else None

    def move(self, position: int) -> None:
        """The attempts were those of the message at the front."""
        if position != self.position:
            self.position, self.attempts = position, 0

    def start_at(self, position: int) -> None:
        """Seeks: what is behind the new position is delivered, again or for the first time."""
        self.position, self.attempts, self.retry_at, self.lease, self.knows_ended = position, 0, None, None, False
        self.settled = {number for number in self.settled if number < position}


@dataclass
class Letter:
    """A dead letter: a copy, which outlives its message."""

    group: str
    number: int
    transaction_id: str
    error: str
    retry_count: int
    failed_at: datetime


@dataclass
class Settled:
    """What is expected of one acknowledgment."""

    answers: Answers
    dlq: bool = False


@dataclass
class Partition:
    """A partition: all messages it ever had, which of them are still there, and the cursors of consumer groups."""

    name: str
    rules: Rules
    messages: list[Sent] = field(default_factory=list)
    floor: int = 0  # messages before it were removed by retention
    removed: set[int] = field(default_factory=set)
    evicted: set[int] = field(default_factory=set)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    letters: list[Letter] = field(default_factory=list)

    def cursor(self, group: str) -> Cursor:
        return self.cursors.setdefault(group, Cursor())

    def is_kept(self, number: int) -> bool:
        return number >= self.floor and number not in self.removed

    def kept(self) -> Iterator[Sent]:
        return (one for one in self.messages if self.is_kept(one.number))

    def find(self, transaction_id: str, group: str | None = None) -> Sent | None:
        """Returns the message of this id. A dead letter that was put back has the id of its original; its consumer
        group means the one that it can still settle."""
        found = [one for one in self.kept() if one.transaction_id == transaction_id]
        if group is None:
            return found[0] if found else None
        seen = [one for one in found if one.only_group in (None, group)]
        open_ = [one for one in seen if one.number not in self.cursor(group).settled]
        return open_[0] if open_ else seen[-1] if seen else None

    def push(self, transaction_id: str, now: datetime, only_group: str | None = None) -> Sent:
        last = self.messages[-1].created_at if self.messages else now
        sent = Sent(len(self.messages), transaction_id, max(now, last), only_group)
        self.messages.append(sent)
        return sent

    def first_after(self, time: datetime) -> int:
        return next((one.number for one in self.messages if one.created_at > time), len(self.messages))

    # What a pop may deliver.

    def waited_too_long(self, one: Sent, now: datetime) -> bool:
        most = self.rules.max_wait_time_seconds
        return most > 0 and now - one.created_at > timedelta(seconds=most)

    def deliverable(self, group: str, now: datetime) -> list[Sent]:
        """Everything that a pop could deliver now, in order; none while the partition is closed to the group."""
        cursor = self.cursors.get(group, Cursor())
        if cursor.live_lease(now) or (cursor.retry_at is not None and cursor.retry_at > now):
            return []
        waiting = [one for one in self._open(group, cursor) if not self.waited_too_long(one, now)]
        if not waiting or self._window_is_open(waiting[0], now):
            return []
        delay = timedelta(seconds=self.rules.delayed_processing)
        return [one for one in waiting if one.created_at + delay <= now]

    def _open(self, group: str, cursor: Cursor) -> list[Sent]:
        return [
            one
            for one in self.messages[cursor.position :]
            if self.is_kept(one.number)
            and one.number not in self.evicted
            and one.number not in cursor.settled
            and one.only_group in (None, group)
        ]

    def _window_is_open(self, oldest: Sent, now: datetime) -> bool:
        """While it is open, messages gather."""
        if self.rules.window_buffer == 0 or now - oldest.created_at >= self.rules.longest_window:
            return False
        return now - self.messages[-1].created_at < timedelta(seconds=self.rules.window_buffer)

    def deliver(self, group: str, batch: Sequence[Sent], lease_id: str, now: datetime) -> None:
        """Records a delivery; without a lease it was acknowledged by itself."""
        cursor = self.cursor(group)
        cursor.knows_ended = False
        self.skip(group, now)
        numbers = [one.number for one in batch]
        if lease_id:
            cursor.lease, cursor.retry_at = Lease(lease_id, numbers, now + self.rules.lease), None
        else:
            cursor.lease = cursor.retry_at = None
            cursor.settled.update(numbers)
            self._advance(group)

    def skip(self, group: str, now: datetime) -> None:
        """A pop moves the cursor over what waited too long."""
        cursor = self.cursor(group)
        position = cursor.position
        while position < len(self.messages) and self._is_passed(group, self.messages[position], now):
            position += 1
        cursor.move(position)

    def _is_passed(self, group: str, one: Sent, now: datetime | None = None) -> bool:
        return (
            not self.is_kept(one.number)
            or one.number in self.evicted
            or one.number in self.cursor(group).settled
            or one.only_group not in (None, group)
            or (now is not None and self.waited_too_long(one, now))
        )

    def _advance(self, group: str) -> None:
        cursor = self.cursor(group)
        position = cursor.position
        while position < len(self.messages) and self._is_passed(group, self.messages[position]):
            position += 1
        cursor.move(position)

    # Settlement.

    def settle(
        self, group: str, lease_id: str | None, acks: Sequence[tuple[str, str, str | None]], now: datetime
    ) -> tuple[list[Settled], bool]:
        """Applies the acknowledgments (id, status, error) of one request under one lease. Returns the answers, and
        whether a lease ended."""
        cursor = self.cursor(group)
        lease = cursor.live_lease(now)
        found = [self.find(transaction_id, group) for transaction_id, _, _ in acks]
        answers = [
            Settled(frozenset({NOT_FOUND}))
            if one is None
            else Settled(self._answers(cursor, lease, lease_id, one, status))
            for one, (_, status, _) in zip(found, acks, strict=True)
        ]
        if lease_id is not None and (lease is None or lease.id != lease_id):
            return answers, False
        open_ = [
            (one, status, error, answer)
            for one, (_, status, error), answer in zip(found, acks, answers, strict=True)
            if one is not None and answer.answers == DONE and not self._is_behind(cursor, one)
        ]
        batch = [] if cursor.lease is None else cursor.lease.batch
        left = {number for number in batch if number not in cursor.settled and self.is_kept(number)}
        for one, status, error, answer in open_:
            if status == "completed":
                cursor.settled.add(one.number)
            elif status == "dlq":
                self._bury(group, one, error, now)
                answer.dlq = True
        self._advance(group)
        failed = [(one, error, answer) for one, status, error, answer in open_ if status == "failed"]
        if failed:
            self._fail(group, failed, left, now)
        ended = bool(failed) or any(status == "retry" for _, status, _, _ in open_)
        if ended and lease is not None:
            cursor.ended_leases.append(lease.id)
            cursor.knows_ended = True
        return answers, self._end_lease(cursor, lease, ended)

    def _answers(self, cursor: Cursor, lease: Lease | None, lease_id: str | None, one: Sent, status: str) -> Answers:
        if self._is_behind(cursor, one):
            # Repeating what was done is success. Another word about it changes nothing, whatever the answer.
            return DONE if status == "completed" and one.number in cursor.settled else DONE | REFUSED
        if lease_id is None:
            return DONE
        if lease is not None and lease.id == lease_id:
            return DONE if one.number <= max(lease.batch) else REFUSED
        if lease_id in cursor.ended_leases and status in ("failed", "retry"):
            return DONE if cursor.knows_ended and lease_id == cursor.ended_leases[-1] else DONE | REFUSED
        return REFUSED

    def _is_behind(self, cursor: Cursor, one: Sent) -> bool:
        """Whether a message is settled or was skipped: nothing more can happen to it for this group."""
        return one.number in cursor.settled or one.number < cursor.position

    def _fail(
        self, group: str, failed: Sequence[tuple[Sent, str | None, Settled]], left: set[int], now: datetime
    ) -> None:
        cursor = self.cursor(group)
        if cursor.attempts < self.rules.retry_limit:
            cursor.attempts += 1
            cursor.retry_at = now + timedelta(milliseconds=self.rules.retry_delay)
            return
        every = left - cursor.settled <= {one.number for one, _, _ in failed}
        for one, error, answer in sorted(failed, key=lambda entry: entry[0].number)[: None if every else 1]:
            self._bury(group, one, error, now)
            answer.dlq = True
        self._advance(group)
        cursor.attempts = 0  # they were spent on the dead one

    def _bury(self, group: str, one: Sent, error: str | None, now: datetime) -> None:
        cursor = self.cursor(group)
        cursor.settled.add(one.number)
        self.letters = [old for old in self.letters if (old.group, old.number) != (group, one.number)]
        self.letters.append(Letter(group, one.number, one.transaction_id, error or EXHAUSTED, cursor.attempts, now))

    def _end_lease(self, cursor: Cursor, lease: Lease | None, ended: bool) -> bool:
        if lease is None:
            return False
        if ended or all(number in cursor.settled or not self.is_kept(number) for number in lease.batch):
            cursor.lease = None
            return True
        return False

    # What operators and ticks do.

    def put_back(self, letter: Letter, now: datetime) -> Sent:
        """Requeues a dead letter, at the end of the partition and for its consumer group only."""
        self.letters.remove(letter)
        return self.push(letter.transaction_id, now, letter.group)

    def forget(self, transaction_id: str) -> bool:
        """Deletes a message with its copies and dead letters. Returns whether there was one."""
        gone = {one.number for one in self.kept() if one.transaction_id == transaction_id}
        letters = [one for one in self.letters if one.transaction_id != transaction_id]
        found = bool(gone) or len(letters) < len(self.letters)
        self.removed |= gone
        self.letters = letters
        return found

    def clear(self, groups: Iterable[str]) -> int:
        """Removes all messages, but no dead letter. Returns how many."""
        cleared = sum(1 for _ in self.kept())
        self.floor = len(self.messages)
        for group in groups:
            self.cursor(group).start_at(self.floor)
        return cleared

    def is_leased(self, transaction_id: str, now: datetime) -> bool:
        return any(self._is_leased(one.number, now) for one in self.kept() if one.transaction_id == transaction_id)

    def evict(self, now: datetime) -> int:
        """Marks what waited too long, was consumed by no group and is in no lease."""
        new = {
            one.number
            for one in self.kept()
            if self.waited_too_long(one, now)
            and one.number not in self.evicted
            and not any(one.number in cursor.settled for cursor in self.cursors.values())
            and not self._is_leased(one.number, now)
        }
        self.evicted |= new
        return len(new)

    def retain(self, groups: Iterable[str], now: datetime) -> int:
        """Removes what is older than retention allows. Returns how many messages that were."""
        if not self.rules.retention_enabled:
            return 0
        before = sum(1 for _ in self.kept())
        self.floor = max(self.floor, self._old(now), self._consumed(list(groups), now))
        age = timedelta(seconds=self.rules.completed_retention_seconds)
        if age:
            self.letters = [one for one in self.letters if one.failed_at + age >= now]
        return before - sum(1 for _ in self.kept())

    def _old(self, now: datetime) -> int:
        seconds = self.rules.retention_seconds
        return self.first_after(now - timedelta(seconds=seconds, microseconds=1)) if seconds else 0

    def _consumed(self, groups: list[str], now: datetime) -> int:
        seconds = self.rules.completed_retention_seconds
        if not seconds or not groups:
            return 0
        old = self.first_after(now - timedelta(seconds=seconds, microseconds=1))
        return min([old, *(self.cursors.get(group, Cursor()).position for group in groups)])

    # Figures.

    def _is_leased(self, number: int, now: datetime) -> bool:
        return any(
            (lease := cursor.live_lease(now)) is not None and number in lease.batch and number not in cursor.settled
            for cursor in self.cursors.values()
        )

    def status(self, one: Sent, groups: Sequence[str], now: datetime) -> str:
        readers = [group for group in groups if one.only_group in (None, group)]
        if one.number in self.evicted:
            return "evicted"
        if self._is_leased(one.number, now):
            return "processing"
        if any(letter.number == one.number for letter in self.letters):
            return "dead_letter"
        if groups and all(self._is_behind(self.cursors.get(group, Cursor()), one) for group in readers):
            return "completed"
        return "pending"

    def figures(self, groups: Sequence[str], now: datetime) -> dict[str, int]:
        counted = Counter(self.status(one, groups, now) for one in self.kept())
        return {
            "total": counted.total(),
            "pending": counted["pending"],
            "processing": counted["processing"],
            "completed": counted["completed"],
            "failed": sum(1 for cursor in self.cursors.values() if cursor.attempts > 0),
            "deadLetter": counted["dead_letter"],
            "evicted": counted["evicted"],
        }

    def late(self, now: datetime) -> int:
        """How many messages waited too long and are not evicted yet."""
        return sum(1 for one in self.kept() if self.waited_too_long(one, now) and one.number not in self.evicted)

    def is_unsure(self, group: str, now: datetime) -> bool:
        """Whether a pop that found nothing may have moved the group's cursor."""
        cursor = self.cursors.get(group, Cursor())
        return self.late(now) > 0 or any(number >= cursor.position for number in self.evicted | self.removed)

    def lag(self, group: str) -> int:
        """How many messages the group has not settled, from its cursor on."""
        return len(self._open(group, self.cursors.get(group, Cursor())))


@dataclass
class Queue:
    """A queue with its partitions and the consumer groups that have popped from it."""

    name: str
    rules: Rules = field(default_factory=Rules)
    namespace: str = ""
    task: str = ""
    partitions: dict[str, Partition] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)  # the mode of each

    def partition(self, name: str) -> Partition:
        """Made on first use. Every consumer group reads a new partition from its beginning."""
        return self.partitions.setdefault(name, Partition(name, self.rules))

    def configure(self, rules: Rules) -> None:
        self.rules = rules
        for partition in self.partitions.values():
            partition.rules = rules

    def push(self, partition: str, transaction_id: str, now: datetime) -> tuple[str, Sent]:
        """Returns `queued` or `duplicate`, and the message."""
        into = self.partition(partition)
        first = into.find(transaction_id)
        return ("queued", into.push(transaction_id, now)) if first is None else ("duplicate", first)

    def join(self, group: str, mode: str | None, from_at: datetime | None) -> None:
        """The first pop of a consumer group fixes where it starts; later ones change nothing."""
        if group in self.groups:
            return
        self.groups[group] = "all" if group == QUEUE_MODE or mode is None else mode
        if group == QUEUE_MODE:
            return
        for partition in self.partitions.values():
            if from_at is not None:
                partition.cursor(group).position = partition.first_after(from_at)
            elif mode == "new":
                partition.cursor(group).position = len(partition.messages)

    def leave(self, group: str) -> None:
        """A deleted consumer group starts anew when it pops again; what was only for it is for no group then."""
        self.groups.pop(group, None)
        for partition in self.partitions.values():
            partition.cursors.pop(group, None)
            partition.letters = [one for one in partition.letters if one.group != group]
            for one in partition.messages:
                if one.only_group == group:
                    one.only_group = f"deleted {group}"

    def seek(self, group: str, time: datetime | None) -> None:
        """To the first message after a time; None is the end."""
        for partition in self.partitions.values():
            end = len(partition.messages) if time is None else partition.first_after(time)
            partition.cursor(group).start_at(end)

    def evict(self, now: datetime) -> int:
        return sum(partition.evict(now) for partition in self.partitions.values())

    def retain(self, now: datetime) -> int:
        return sum(partition.retain(self.groups, now) for partition in self.partitions.values())

    def figures(self, now: datetime) -> dict[str, int]:
        whole: Counter[str] = Counter()
        for partition in self.partitions.values():
            whole.update(partition.figures(list(self.groups), now))
        return dict(whole)

    def lag(self, group: str) -> int:
        return sum(partition.lag(group) for partition in self.partitions.values())

    def unsettled(self) -> int:
        """The most that `maxSize` may count: messages from the cursor of the slowest consumer group on."""
        return sum(
            1
            for partition in self.partitions.values()
            for one in partition.messages[partition.floor :]
            if not self.groups or any(one.number >= partition.cursor(group).position for group in self.groups)
        )


def extend(
    cursors: Iterable[tuple[Cursor, Rules]], lease_id: str, seconds: int | None, now: datetime
) -> list[datetime]:
    """Renews a lease in all partitions that it still holds. Returns the new ends."""
    ends = []
    for cursor, rules in cursors:
        lease = cursor.live_lease(now)
        if lease is not None and lease.id == lease_id:
            length = rules.lease if seconds is None else timedelta(seconds=seconds)
            lease.until = max(lease.until, now + length)
            ends.append(lease.until)
    return ends
