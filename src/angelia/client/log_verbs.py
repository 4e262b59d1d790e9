"""The verbs of group logs for one agent: groups and members, and what is done in one group."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from angelia.client import (
    log_checking,
    log_compacting,
    log_export,
    log_import,
    log_membership,
    log_reading,
    log_repairing,
    log_writing,
)
from angelia.client.exchange import Exchange
from angelia.client.log_nodes import OpenLog, Outcome, ask_nodes, node_request, read
from angelia.client.namespaces import Awaited, Blocking, Mode, Namespace, OwnNamespace, OwnVerb, Run, Verb
from angelia.grouplog import api
from angelia.grouplog.model.documents import Storage
from angelia.grouplog.model.editions import GroupEdition
from angelia.mailbox import log_journal
from angelia.mailbox.database import MailboxTx
from angelia.mailbox.log_application import LogApplication, LogEntry
from angelia.mailbox.log_journal import Journal, JournalRow
from angelia.mailbox.log_own_snapshots import OwnSnapshots
from angelia.mailbox.log_replica import NodeFault, opened_replica
from angelia.mailbox.mailbox import Mailbox

if TYPE_CHECKING:
    from angelia.client.async_client import AsyncClient
    from angelia.client.blocking_client import Client

P = ParamSpec("P")
T = TypeVar("T")


class LogVerb(Verb[P, T]):
    """A verb as a method of an open group log: its exchange is given that as its first argument."""

    def __init__(self, exchange: Callable[Concatenate[OpenLog, P], Exchange[T]]) -> None:
        super().__init__(cast(Callable[P, Exchange[T]], exchange))

    def _of(self, namespace: MemberLog[Any]) -> Callable[..., Exchange[T]]:
        return MethodType(self._exchange, namespace.opened)


def _storage(log: OpenLog) -> Exchange[tuple[dict[bytes, Storage], dict[bytes, Outcome]]]:
    """Returns what the group takes on each node, by node id, and all answers, so also why a node gave none."""
    outcomes = yield from ask_nodes(log, log.nodes, lambda node: node_request(api.STORAGE, node, log.gid))
    return read(api.STORAGE, outcomes), outcomes


class MemberLog(Namespace[Mode]):
    """One group log, open on this device. Its application keeps the state that messages change."""

    def __init__(self, run: Run, opened: OpenLog) -> None:
        super().__init__(run)
        self.opened = opened

    append = LogVerb(log_writing.append)
    deliver = LogVerb(log_writing.deliver)
    sync = LogVerb(log_reading.sync)
    compact = LogVerb(log_compacting.compact)
    compact_if_due = LogVerb(log_compacting.compact_if_due)
    check = LogVerb(log_checking.check)
    repair = LogVerb(log_repairing.repair)
    storage = LogVerb(_storage)
    export = LogVerb(log_export.export)
    import_file = LogVerb(log_import.import_file)

    @property
    def edition(self) -> GroupEdition:
        """Members, nodes and configuration, as the last edition that came says."""
        return self.opened.replica.refresh()

    @property
    def vector(self) -> dict[bytes, int]:
        """What this device received of each sender, without gaps."""
        return self.opened.replica.received.vector

    @property
    def untrue(self) -> list[NodeFault]:
        """What nodes handed out and what did not hold, since the log was opened: the last hundred."""
        return list(self.opened.untrue)

    @property
    def floors(self) -> dict[bytes, tuple[int, int]]:
        """What snapshots have replaced of each sender: up to which seq, and the highest level of those."""
        return self.opened.snapshots.floors()

    def reading(self) -> AbstractContextManager[MailboxTx]:
        """The database in which the application keeps its state, as it is at one moment."""
        return self.opened.replica.database.transaction()

    def journal(self, after: int = 0, limit: int = 500) -> list[JournalRow]:
        """The updates that this device has, in the order in which they came; for the application `Journal`."""
        return list(log_journal.rows_after(self.opened.replica.database, after, limit))

    def last(self, count: int) -> list[JournalRow]:
        """The updates that came last, the oldest first; for the application `Journal`."""
        return list(log_journal.last_rows(self.opened.replica.database, count))

    def close(self) -> None:
        """Closes the log's database."""
        self.opened.replica.database.close()


class BlockingLog(MemberLog[Blocking]):
    def __init__(self, client: Client, opened: OpenLog) -> None:
        super().__init__(client.run, opened)
        self._client = client

    def batches(self) -> Generator[list[LogEntry], None, None]:
        """Yields the updates of other members as they are applied, without end; an empty list at least every second."""
        from angelia.client.log_following import blocking_batches

        return blocking_batches(self._client._line, self.opened)

    def follow(self) -> Generator[LogEntry, None, None]:
        """Yields the updates of other members as they are applied, without end. Nodes that are away are waited for, and
        snapshots are taken when it is this agent's turn."""
        for batch in self.batches():
            yield from batch


class AsyncLog(MemberLog[Awaited]):
    def __init__(self, client: AsyncClient, opened: OpenLog) -> None:
        super().__init__(client.run, opened)
        self._client = client

    def batches(self) -> AsyncGenerator[list[LogEntry], None]:
        """Yields the updates of other members as they are applied, without end; an empty list at least every second."""
        from angelia.client.log_following import Follower

        return Follower(self._client, self.opened).batches()

    async def follow(self) -> AsyncGenerator[LogEntry, None]:
        """Yields the updates of other members as they are applied, without end. Nodes that are away are waited for, and
        snapshots are taken when it is this agent's turn."""
        async for batch in self.batches():
            for entry in batch:
                yield entry


def _opened(mailbox: Mailbox, name: str, application: LogApplication | None) -> Exchange[OpenLog]:
    edition = yield from log_membership.find_log(mailbox, name)
    replica = opened_replica(mailbox.logs, edition, application or Journal())
    return OpenLog(mailbox, replica, OwnSnapshots(replica))


class AgentLogs(OwnNamespace[Mode]):
    """The group logs of one agent: which groups it is in, and their members and nodes. A group is called by its name,
    or by the beginning of its id."""

    create = OwnVerb(log_membership.create_log)
    list = OwnVerb(log_membership.list_logs)
    find = OwnVerb(log_membership.find_log)
    settle = OwnVerb(log_membership.settle)
    add = OwnVerb(log_membership.add_members)
    remove = OwnVerb(log_membership.remove_members)
    replace_nodes = OwnVerb(log_membership.replace_nodes)
    drop = OwnVerb(log_membership.drop_log)
    forget = OwnVerb(log_membership.forget_log)


class BlockingLogs(AgentLogs[Blocking]):
    def __init__(self, client: Client, mailbox: Mailbox) -> None:
        super().__init__(client.run, mailbox)
        self._client = client

    def open(self, name: str, application: LogApplication | None = None) -> BlockingLog:
        """Opens a group log with an application; without one its updates are kept as they are."""
        return BlockingLog(self._client, self._client.run(_opened(self._mailbox, name, application)))


class AsyncLogs(AgentLogs[Awaited]):
    def __init__(self, client: AsyncClient, mailbox: Mailbox) -> None:
        super().__init__(client.run, mailbox)
        self._client = client

    async def open(self, name: str, application: LogApplication | None = None) -> AsyncLog:
        """Opens a group log with an application; without one its updates are kept as they are."""
        return AsyncLog(self._client, await self._client.run(_opened(self._mailbox, name, application)))
