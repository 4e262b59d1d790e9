"""Finds the rooms and messages that a command names, and the keys of private rooms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import click
from click.shell_completion import CompletionItem

from angelia.cli import lean_httpx
from angelia.cli.command_context import CommandContext
from angelia.cli.errors import Usage
from angelia.cli.paging import SHORTEST_PREFIX, every, full_id, server_pages
from angelia.errors import AmbiguousId, AngeliaError, Denied, NotFound, Unauthenticated

if TYPE_CHECKING:
    from angelia.client import Client
    from angelia.rooms.api import RoomRecord

_PREFIX = re.compile(rf"[0-9a-f][0-9a-f-]{{{SHORTEST_PREFIX - 1},34}}")
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{0,25}")
_ULID_LENGTH, _TIME_LENGTH = 26, 10  # a message's id begins with its time in milliseconds
_COMPLETION_SECONDS = 0.3
_KEY_REQUIRED = "room key required for private rooms"

key_flag = click.option(
    "--key-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="F",
    help="file with the key of a private room (ANGELIA_ROOM_KEY, else a prompt)",
)  # fmt: skip


@contextmanager
def next_steps(hints: Mapping[str, str]) -> Iterator[None]:
    """Adds the hint for what the server answers, by its text: AICQ's routes have no other code than the status."""
    try:
        yield
    except AngeliaError as error:
        error.hint = hints.get(error.message, error.hint)
        raise


def room_steps(name: str) -> dict[str, str]:
    """The hints for what a server answers about the room that the user named."""
    return {
        "room not found": "angelia room list; a private room is named by its whole id",
        "message not found": f"angelia room read {name}",
        "parent message not found in this room": f"angelia room read {name}",
        "only the creator of a room changes it": f"angelia room show {name}",
        "room name is reserved": "choose another name; the room is there already: angelia room show global",
    }


class Identified(Protocol):
    """A message of a room or an inbox."""

    @property
    def id(self) -> str: ...
    @property
    def ts(self) -> int: ...


@dataclass(frozen=True, slots=True)
class OpenRoom:
    """A room that the command may read: as the user named it, and as it is; `key` is that of a private one."""

    client: Client
    named: str
    room: RoomRecord
    key: str | None


def writer(session: CommandContext) -> Client:
    """A client that signs; raises Unauthenticated for an agent that is on no server."""
    refuse_unregistered(session)
    return session.as_agent()


def refuse_unregistered(session: CommandContext) -> None:
    identity = session.identity
    if identity.id is None:
        raise Unauthenticated(
            f"{identity.handle} is not registered with a server", hint=f"angelia agent register --as {identity.name}"
        )


def room_id_of(client: Client, name: str) -> UUID:
    """The id of the room that the user named: a name that is public and the only one, an id, or the beginning of the
    id of a public room."""
    try:
        return client.rooms.find(name)
    except NotFound as error:
        if _PREFIX.fullmatch(name.lower()) is None:
            raise
        known = [str(one.id) for one in every(server_pages(client.rooms.list, lambda page: page.rooms))]
        if not any(one.startswith(name.lower()) for one in known):
            raise error from None
    return UUID(full_id(name, known, "public room", "angelia room list"))


def open_room(session: CommandContext, client: Client, name: str, key_file: Path | None) -> OpenRoom:
    """The room that the user named. Its key is looked for only if the room is private, so that no other server and no
    public room is sent it."""
    room_id = room_id_of(client, name)
    try:
        return OpenRoom(client, name, client.rooms.show(room_id), None)
    except NotFound as error:
        raise NotFound(f"there is no room {name}", hint="angelia room list") from error
    except Denied as error:
        if error.message != _KEY_REQUIRED:
            raise
    key = _room_key(session, key_file, f"key of the room {room_id}: ", f"{room_id} is private")
    try:
        return OpenRoom(client, name, client.rooms.show(room_id, key=key), key)
    except Denied as error:
        error.hint = "--key-file F or ANGELIA_ROOM_KEY names another; after ten wrong ones a minute, wait"
        raise


def new_room_key(session: CommandContext, key_file: Path | None) -> str:
    """The key of a private room that is about to be made; a person types it twice."""
    from angelia.client.room_calls import check_room_key

    key = check_room_key(_room_key(session, key_file, "key of the new room: ", "the new room is private"))
    if key_file is None and session.settings.room_key is None and session.ask_secret("once more: ") != key:
        raise Usage("the two keys differ; nothing was made")
    return key


def full_message_id(given: str, older: Callable[[int], Sequence[Identified]], look: str) -> str:
    """The one message id that begins with `given`; raises if none or several do. `older` gives the newest messages
    before a time in Unix milliseconds, and `look` is the command that lists them."""
    from angelia.rooms.model import MessageId

    text = given.upper()
    if _ULID.fullmatch(text) is None:
        raise NotFound(f"{given!r} is no id: no message has such an id", hint=f"see `{look}`")
    if len(text) == _ULID_LENGTH:
        return text
    if len(text) < SHORTEST_PREFIX:
        raise Usage(f"{given!r} is too short for an id", hint=f"{SHORTEST_PREFIX} characters or more; see `{look}`")
    # The beginning of an id tells when the message was posted, to the second or better: only those are looked at.
    first, last = (MessageId.parse(text[:_TIME_LENGTH].ljust(_ULID_LENGTH, fill)) for fill in "0Z")
    assert first is not None, "the text was matched"
    assert last is not None, "the text was matched"
    found, before = list[str](), last.ts + 1
    while before > first.ts and (page := older(before)) and page[-1].ts < before:
        found += [one.id for one in page if one.id.startswith(text)]
        before = page[-1].ts
    if not found:
        raise NotFound(f"there is no message {given}", hint=f"see `{look}`")
    if len(found) > 1:
        raise AmbiguousId(f"{len(found)} messages begin with {given}", hint=f"they are {', '.join(found[:3])}")
    return found[0]


def message_id_in(opened: OpenRoom, given: str) -> str:
    """The id of a message of the room, by its beginning."""

    def older(before: int) -> Sequence[Identified]:
        return opened.client.rooms.read(opened.room.id, before=before, limit=200, key=opened.key).messages

    return full_message_id(given, older, f"angelia room read {opened.named}")


def room_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The public rooms of the server, for shell completion; none if it does not answer at once."""
    from angelia import settings

    try:
        loaded = settings.load().settings
        lean_httpx.load()
        from angelia.client import Client
        from angelia.client.opening import server_url

        url = server_url(loaded.data_dir, ctx.params.get("url") or loaded.url)
        with Client(url, timeout=_COMPLETION_SECONDS) as client:
            names = {one.name for one in client.rooms.list(limit=1000).rooms}
    except (AngeliaError, OSError):
        return []
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def _room_key(session: CommandContext, key_file: Path | None, prompt: str, why: str) -> str:
    if key_file is not None:
        key = key_file.read_text("utf-8", "replace").partition("\n")[0].removesuffix("\r")
        if not key:
            raise Usage(f"{key_file} holds no room key", hint="its first line is the key")
        return key
    asked = session.settings.room_key or session.ask_secret(prompt)
    if asked is None:
        raise Usage(f"{why}, and there is no terminal to ask for its key", hint="--key-file F or ANGELIA_ROOM_KEY")
    return asked
