"""Five spool nodes beside one server, members that share group logs on them, and what may happen to a node's disk."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from angelia.client.exchange import Exchange
from angelia.client.log_nodes import ask_nodes, node_request, record_of
from angelia.client.log_verbs import BlockingLog, BlockingLogs
from angelia.grouplog import api, store
from angelia.grouplog.model import records
from angelia.grouplog.model.frames import FrameReader, LogMessage, Type, frame
from angelia.grouplog.model.pieces import Manifest
from angelia.mailbox.log_application import LogApplication
from angelia.stores.rocks import Rocks
from live_agents import NO_LIMITS, Person
from lying_proxy import Answer, Asked, Lie
from server_process import ServerProcess
from spool_process import SpoolProcess

RATE = {"log_append_rate": "100000", "log_append_burst": "100000"}
T = TypeVar("T")


class Fleet:
    """One server for mail, and the nodes. A node that starts again has the same address."""

    def __init__(self, directory: Path, nodes: int = 5) -> None:
        place = directory / f"fleet-{secrets.token_hex(4)}"
        place.mkdir()
        place.chmod(0o755)
        self.server = ServerProcess(place / "server", limits=NO_LIMITS)
        self.nodes = [SpoolProcess(place / f"node{number}", **RATE) for number in range(nodes)]
        self.url = ""

    def start(self) -> None:
        with ThreadPoolExecutor() as threads:
            starting = threads.submit(self.server.start)
            list(threads.map(SpoolProcess.start, self.nodes))
            self.url = starting.result().url

    def stop(self) -> None:
        with ThreadPoolExecutor() as threads:
            list(threads.map(SpoolProcess.stop, self.nodes))
            self.server.stop()

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    @contextmanager
    def without(self, *numbers: int) -> Iterator[None]:
        """Kills nodes, and starts them again at the end."""
        away = [self.nodes[number] for number in numbers]
        for node in away:
            node.kill()
        try:
            yield
        finally:
            with ThreadPoolExecutor() as threads:
                list(threads.map(SpoolProcess.start, away))

    def damage(self, group: bytes, sender: bytes, seq: int, *numbers: int) -> None:
        """Flips a bit of a message on the disks of nodes, which start again afterwards."""
        with self.without(*numbers):
            for number in numbers:
                _damage(self.nodes[number].data_dir / "spool" / "log", group, sender, seq)


def _damage(directory: Path, group: bytes, sender: bytes, seq: int) -> None:
    rocks = Rocks(directory, store.FAMILIES)
    try:
        row = store.group(rocks, group)
        assert row is not None
        record = store.record(rocks, row.ordinal, sender, seq)
        assert record is not None, "the node has a piece of the message"
        batch = rocks.batch()
        batch.put(store.MSG, store.message_key(row.ordinal, sender, seq), record[:-1] + bytes((record[-1] ^ 1,)))
        rocks.write(batch)
    finally:
        rocks.close()


class Member(Person):
    """An agent whose keys are published. It may have several group logs open."""

    def __init__(self, url: str, home: Path, name: str) -> None:
        super().__init__(url, home, name)
        self.register()
        self.client.keys.publish(self.mailbox)
        self._logs: list[BlockingLog] = []

    @property
    def logs(self) -> BlockingLogs:
        return BlockingLogs(self.client, self.mailbox)

    def open(self, name: str, application: LogApplication | None = None) -> BlockingLog:
        """Opens a group log, with the editions that came by mail."""
        self.logs.list()
        self._logs.append(self.logs.open(name, application))
        return self._logs[-1]

    def restarted(self, name: str, application: LogApplication | None = None) -> BlockingLog:
        """Opens a group log as a new process of the same agent does."""
        self._close_logs()
        self.reopen()
        return self.open(name, application)

    def without_state(self, name: str) -> BlockingLog:
        """Opens a group log on a device that has never read it."""
        self.logs.list()
        path = self.mailbox.logs.path(self.mailbox.logs.find(name).group)
        self._close_logs()
        for beside in path.parent.glob(f"{path.name}*"):
            beside.unlink()
        return self.open(name)

    def copied(self, home: Path) -> Member:
        """The same agent from a copy of its directory: on a second machine, or put back from a back-up."""
        self._close_logs()
        self.close()
        shutil.copytree(self.home, home)
        self.mailbox, self.client = self._opened()
        other = object.__new__(Member)
        other.url, other.home, other.name, other._logs = self.url, home, self.name, []
        other.mailbox, other.client = other._opened()
        return other

    def end(self) -> None:
        self._close_logs()
        self.close()

    def _close_logs(self) -> None:
        for log in self._logs:
            log.close()
        self._logs.clear()


def befriend(members: Sequence[Member]) -> None:
    """Each opens the mail of all others."""
    for one in members:
        for other in members:
            if one is not other:
                one.allow(other)


class Killed(BaseException):
    """The process of a device died here"""


def killed_at(exchange: Exchange[T], step: int, *, answered: bool) -> Exchange[T]:
    """Runs a verb of which the process dies at a step: before its requests leave, or once they are answered."""
    request = next(exchange)
    while True:
        if step == 0 and not answered:
            raise Killed
        response = yield request
        if step == 0:
            raise Killed
        step -= 1
        try:
            request = exchange.send(response)
        except StopIteration as stop:
            ended: T = stop.value
            return ended


def texts(log: BlockingLog) -> list[str]:
    """What a log's journal has, in no order."""
    return sorted(row.body.decode() for row in log.journal())


def forgotten(log: BlockingLog) -> dict[bytes, int]:
    """How many floors each node has: none before it has deleted anything."""
    found, _ = log.storage()
    return {node: storage.floors for node, storage in found.items()}


def holders(log: BlockingLog, sender: bytes, seq: int) -> list[int]:
    """The numbers of the nodes that have the shards of a snapshot, in the order of the shards."""
    listed, node = log.edition.node_ids, log.edition.nodes[0]
    outcomes = log._run(
        ask_nodes(log.opened, [node], lambda one: node_request(api.READ, one, log.opened.gid, sender.hex(), seq))
    )
    record = record_of(outcomes[node.id])
    assert record is not None, "each node has a shard"
    return [listed.index(place.node) for place in Manifest.decode(record.manifest).places]


def messages_of(change: Callable[[list[LogMessage]], list[LogMessage]]) -> Lie:
    """A lie about the messages on a page of a backfill."""

    def lie(_: Asked, answer: Answer) -> Answer:
        if answer.status != 200:
            return answer
        frames = list(FrameReader().feed(answer.body))
        said = change([LogMessage.decode(body) for type_, body in frames if type_ == Type.MESSAGE])
        rest = [frame(Type(type_), body) for type_, body in frames if type_ != Type.MESSAGE]
        return replace(answer, body=b"".join([*(one.encode() for one in said), *rest]))

    return lie


def flipped(message: LogMessage, at: int) -> LogMessage:
    """A message with one bit of its data changed, in a record that is sound."""
    record = records.decode(message.record)
    data = bytearray(record.data)
    data[at] ^= 1
    return LogMessage(message.sender, message.seq, msgspec.structs.replace(record, data=bytes(data)).encode())
