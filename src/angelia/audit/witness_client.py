"""The witness of this node's audit: it keeps the checkpoints where write access to the ledger cannot change them."""

from __future__ import annotations

import asyncio
import base64
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import UUID

import httpx
import msgspec
import structlog

from angelia.audit.api import WITNESS, CheckpointList, Testimony, WitnessedPosition
from angelia.audit.model import Checkpoint
from angelia.audit.service import NodeSigner
from angelia.envelope.ids import KeyType, key_id
from angelia.errors import Conflict, Unavailable

T = TypeVar("T")
log = structlog.get_logger(__name__)

_MOST_PAGES = 100_000  # of a thousand checkpoints each; at one checkpoint a minute that is 190 years
_PAUSE = timedelta(seconds=30)
_SECONDS = 10.0


class Witness(Protocol):
    """A place that checkpoints are handed to. Raises Unavailable while it is away, Conflict if it refuses one."""

    def newest(self, public_key: bytes) -> int:
        """The position of the newest checkpoint that it has of a node; 0 for none."""
        ...

    def take(self, public_key: bytes, checkpoint: Checkpoint) -> None: ...

    def checkpoints(self, node_key_id: UUID, after: int = 0) -> Iterator[Checkpoint]: ...


def witness_at(place: str, *, begins: bool = False) -> Witness:
    """The witness at a place: a file by its absolute path, or another node as https://:TOKEN@host. With `begins`, for a
    node that has signed nothing yet, a missing file is created."""
    return NodeWitness(place) if "://" in place else FileWitness(Path(place), begins=begins)


class FileWitness:
    """A file that is only appended to, one checkpoint per line; best on another disk.

    It is created once, for a node that begins. Later a missing file means that its disk is not mounted."""

    def __init__(self, path: Path, *, begins: bool = False) -> None:
        self._path = path
        self._begins = begins

    def newest(self, public_key: bytes) -> int:
        """The newest one stands last. Lines that the node did not sign are skipped."""
        node = key_id(KeyType.ED25519, public_key)
        kept = (one for one in self._from_the_end() if one.node_key_id == node and one.is_signed_by(public_key))
        return next((one.position for one in kept), 0)

    def take(self, public_key: bytes, checkpoint: Checkpoint) -> None:
        line = msgspec.json.encode(checkpoint) + b"\n"
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if self._begins else 0)
        try:
            with os.fdopen(os.open(self._path, flags, 0o600), "ab") as log:
                self._begins = False
                size = os.fstat(log.fileno()).st_size
                if size and os.pread(log.fileno(), 1, size - 1) != b"\n":
                    line = b"\n" + line  # a power cut left the last line incomplete
                log.write(line)
                log.flush()
                os.fsync(log.fileno())
        except FileNotFoundError as error:
            raise Unavailable(
                f"{self._path} is not there: is its disk mounted? To begin a new one for a node that has signed before:"
                f" touch {self._path}"
            ) from error
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be written: {error.strerror}") from error

    def checkpoints(self, node_key_id: UUID, after: int = 0) -> Iterator[Checkpoint]:
        with self._reading(), self._path.open("rb") as lines:
            for line in lines:
                one = _parsed(line)
                if one is not None and one.node_key_id == node_key_id and one.position > after:
                    yield one

    def _from_the_end(self) -> Iterator[Checkpoint]:
        with self._reading(), self._path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            if not end:
                return
            with mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ) as lines:
                while end:
                    begin = lines.rfind(b"\n", 0, end - 1) + 1
                    if (one := _parsed(lines[begin:end])) is not None:
                        yield one
                    end = begin

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A file that is not there has no checkpoints."""
        try:
            yield
        except FileNotFoundError:
            return
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be read: {error.strerror}") from error


def _parsed(line: bytes) -> Checkpoint | None:
    """The checkpoint of a line; None for an incomplete line."""
    try:
        return msgspec.json.decode(line, type=Checkpoint)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class NodeWitness:
    """Another node of Angelia. It refuses a checkpoint that goes back or differs from one that it has."""

    def __init__(self, url: str) -> None:
        parsed = httpx.URL(url)
        self._headers = {"authorization": f"Bearer {parsed.password}"}
        self._url = str(parsed.copy_with(username=None, password=None)).rstrip("/")

    def newest(self, public_key: bytes) -> int:
        return self._tell(public_key, ())

    def take(self, public_key: bytes, checkpoint: Checkpoint) -> None:
        self._tell(public_key, [checkpoint])

    def checkpoints(self, node_key_id: UUID, after: int = 0) -> Iterator[Checkpoint]:
        for _ in range(_MOST_PAGES):
            query = {"node": str(node_key_id), "after": str(after)}
            page = self._answer(CheckpointList, "GET", params=query).checkpoints
            if not page:
                return
            for one in page:
                if one.position <= after:
                    raise Unavailable(
                        f"{self._url} was asked for the checkpoints after {after:,}, and gave earlier ones"
                    )
                yield one
                after = one.position
        raise Unavailable(f"the checkpoints of {self._url} did not end after {_MOST_PAGES:,} pages")

    def _tell(self, public_key: bytes, checkpoints: Sequence[Checkpoint]) -> int:
        testimony = Testimony(public_key=base64.b64encode(public_key).decode(), checkpoints=list(checkpoints))
        headers = {"content-type": "application/json"}
        return self._answer(WitnessedPosition, "POST", content=msgspec.json.encode(testimony), headers=headers).position

    def _answer(self, kind: type[T], method: str, **what: Any) -> T:
        headers = self._headers | what.pop("headers", {})
        try:
            answer = httpx.request(method, f"{self._url}{WITNESS.path}", headers=headers, timeout=_SECONDS, **what)
            if answer.is_success:
                return msgspec.json.decode(answer.content, type=kind)
        except httpx.HTTPError as error:
            raise Unavailable(f"{self._url} does not answer: {error or type(error).__name__}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unavailable(f"{self._url} is no Angelia server: {error}") from error
        said = f"{self._url} answers {answer.status_code}: {answer.text[:200]}"
        raise Conflict(said) if answer.status_code == 409 else Unavailable(said)


class CheckpointHandover:
    """Hands a node's newest checkpoint, which vouches for all before it, to the witness. A witness that is away delays
    nothing else.

    The checkpoint comes from the node's own memory: in the ledger, SQL could hide it from the witness.
    """

    def __init__(self, node: NodeSigner, witness: Witness) -> None:
        self._node = node
        self._witness = witness
        self._handed: int | None = None
        self._trouble: str | None = None
        self._not_before: datetime | None = None

    async def hand_over(self, now: datetime) -> bool:
        """One tick. Returns False: no more work waits, since the next checkpoint replaces this one."""
        newest = self._node.checkpoint()
        if newest is None or (self._not_before is not None and now < self._not_before):
            return False
        try:
            await self._hand_over(newest)
        except (Unavailable, Conflict) as error:
            if error.message != self._trouble:
                tell = log.error if isinstance(error, Conflict) else log.warning
                tell(
                    "the witness of the audit does not take our checkpoints",
                    why=error.message,
                    signed_to=newest.position,
                    witness_has=self._handed,
                )
            self._handed, self._trouble, self._not_before = None, error.message, now + _PAUSE
            return False
        if self._trouble is not None:
            log.info("the witness of the audit takes our checkpoints again", signed_to=newest.position)
        self._trouble = self._not_before = None
        return False

    async def _hand_over(self, newest: Checkpoint) -> None:
        if self._handed is None:
            self._handed = await asyncio.to_thread(self._witness.newest, self._node.public_key)
        if self._handed > newest.position:
            raise Conflict(
                f"it has checkpoint {self._handed:,} of this node, which remembers {newest.position:,} as its last"
            )
        if self._handed < newest.position:
            await asyncio.to_thread(self._witness.take, self._node.public_key, newest)
            self._handed = newest.position
