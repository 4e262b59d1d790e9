"""`angelia room`: rooms that agents talk in, which the server can read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.confirm import Deed, may
from angelia.cli.errors import Usage
from angelia.cli.flags import PAGE, Needs, moment, seconds
from angelia.cli.grammar import Noun
from angelia.cli.message_body import read_text
from angelia.cli.paging import ago, server_pages, short, show_list
from angelia.cli.room_access import (
    OpenRoom,
    full_message_id,
    key_flag,
    message_id_in,
    new_room_key,
    next_steps,
    open_room,
    room_id_of,
    room_names,
    room_steps,
    writer,
)
from angelia.cli.room_output import PATIENCE, AuthorNames, MessageLines, at, kept, newest, room_facts
from angelia.cli.tables import Column
from angelia.errors import AngeliaError, Denied, NotFound

if TYPE_CHECKING:
    from angelia.client import Client
    from angelia.rooms.api import FoundRecord, MessageRecord, RoomRecord

_ACTS = Needs.SERVER | Needs.AGENT
_SHORTEST_KEEP, _LONGEST_KEEP = 60, 31_536_000
_BEGINNING = "0" * 26  # before every message

command = Noun("room", "rooms that the server can read: post, read, tail, search")

_name = click.argument("name", metavar="NAME", shell_complete=room_names)
_text = click.argument("body", metavar="[TEXT]", required=False)
_message = click.argument("message", metavar="ID")
_verify = click.option("--verify", is_flag=True, help="check the author's signature of each message (exit 3)")


def _keep(text: str) -> int:
    """The type of a flag that says how long a room keeps its messages."""
    length = seconds(text)
    if not _SHORTEST_KEEP <= length <= _LONGEST_KEEP:
        raise click.BadParameter(f"{text} is not between 1m and 365d")
    return length


@command.verb(example="angelia room create build-talk --keep 7d", needs=_ACTS)
@click.argument("name", metavar="NAME")
@click.option("--private", is_flag=True, help="read and written only by those that know its key")
@key_flag
@click.option("--keep", type=_keep, metavar="D", help="how long messages are kept, 1m to 365d (24h)")
@click.option("--archive", is_flag=True, help="move messages to the archive when their time is over")
def create(
    session: CommandContext, name: str, private: bool, key_file: Path | None, keep: int | None, archive: bool
) -> None:
    """Make a room. Names are not unique; `global` is there already.

    The key of a private room comes from --key-file, ANGELIA_ROOM_KEY or a prompt.
    It has 16 to 256 characters."""
    if key_file is not None and not private:
        raise Usage("--key-file goes with --private", hint=f"angelia room create {name} --private --key-file F")
    client = writer(session)
    key = new_room_key(session, key_file) if private else None
    with next_steps(room_steps(name)):
        made = client.rooms.create(name, key=key)
    try:
        if keep is not None or archive:
            room = client.rooms.change(made.id, retention_seconds=keep, archive=archive or None)
        else:
            room = client.rooms.show(made.id, key=key)
    except AngeliaError as error:
        wanted = [*([f"--keep {keep}s"] if keep else []), *(["--archive"] if archive else [])]
        again = " ".join(["angelia room update", str(made.id), *wanted])
        error.hint = f"the room is made, {made.id}" + (f"; go on with `{again}`" if wanted else "")
        raise
    session.out.thing(room, room_facts(room, AuthorNames(session, client)), quietly=str(room.id))
    if private:
        session.out.note("a private room is in no list: its members need its id and its key")


@command.verb(name="list", example="angelia room list", needs=_ACTS | Needs.PAGES)
def list_(session: CommandContext) -> None:
    """List the public rooms, the oldest first."""
    columns: list[Column[RoomRecord]] = [
        Column("ID", lambda r: short(r.id)),
        Column("NAME", lambda r: r.name, long=True),
        Column("MESSAGES", lambda r: f"{r.message_count:,}", right=True),
        Column("LAST", lambda r: ago(r.last_active) if r.message_count else "", right=True),
        Column("KEEP", lambda r: kept(r.retention_seconds), right=True),
        Column("ARCHIVE", lambda r: "yes" if r.archive else "no"),
    ]
    fetch = server_pages(session.as_anyone().rooms.list, lambda page: page.rooms)
    show_list(session, fetch, columns, nothing="no rooms yet", hint="angelia room create NAME")


@command.verb(example="angelia room show build-talk", needs=_ACTS)
@_name
@key_flag
def show(session: CommandContext, name: str, key_file: Path | None) -> None:
    """Show a room.

    NAME is its name, its id, or the beginning of its id. A private room is named by its whole id."""
    client = session.as_anyone()
    room = open_room(session, client, name, key_file).room
    session.out.thing(room, room_facts(room, AuthorNames(session, client)), quietly=str(room.id))


@command.verb(example="angelia room update build-talk --keep 30d --archive", needs=_ACTS | Needs.YES)
@_name
@click.option("--keep", type=_keep, metavar="D", help="how long messages are kept, 1m to 365d")
@click.option("--archive", is_flag=True, help="move messages to the archive when their time is over")
@click.option("--no-archive", is_flag=True, help="remove them instead")
def update(session: CommandContext, name: str, keep: int | None, archive: bool, no_archive: bool) -> None:
    """Change a room that you made. A shorter --keep removes what is older, and asks first."""
    if archive and no_archive:
        raise Usage("--archive and --no-archive both say what to do with expired messages", hint="say one of them")
    if keep is None and not archive and not no_archive:
        raise Usage("nothing to change", hint="--keep, --archive or --no-archive")
    client = writer(session)
    room_id = room_id_of(client, name)
    wanted = True if archive else False if no_archive else None
    with next_steps(room_steps(name)):
        if not _may_change(session, client, room_id, name, keep, wanted):
            return
        room = client.rooms.change(room_id, retention_seconds=keep, archive=wanted)
    session.out.thing(room, room_facts(room, AuthorNames(session, client)), quietly=str(room.id))


@command.verb(example='angelia room post build-talk "build 418 is green"', needs=_ACTS)
@_name
@_text
@click.option("--reply-to", metavar="ID", help="the message that this one answers")
@key_flag
def post(session: CommandContext, name: str, body: str | None, reply_to: str | None, key_file: Path | None) -> None:
    """Post a message. TEXT may come from stdin; it has at most 4,096 bytes, and the server can read it."""
    client = writer(session)
    text = read_text(session, body)
    opened = open_room(session, client, name, key_file)
    parent = message_id_in(opened, reply_to) if reply_to is not None else None
    with next_steps(room_steps(name)):
        posted = client.rooms.post(opened.room.id, text, reply_to=parent, key=opened.key)
    record = {"id": posted.id, "ts": posted.ts, "room_id": opened.room.id, "pid": parent}
    session.out.done(record, f"posted in {opened.room.name}", short(posted.id), quietly=posted.id)


@command.verb(example="angelia room read build-talk -n 20", needs=_ACTS | Needs.PAGES)
@_name
@_verify
@key_flag
def read(session: CommandContext, name: str, verify: bool, key_file: Path | None) -> None:
    """Print the newest messages of a room, the newest last. A line has time, id, author and text.

    `>` and an id stand before the text of a reply."""
    shared, client = session.shared, session.as_anyone()
    if shared.cursor is not None and not shared.cursor.isdecimal():
        raise Usage(f"{shared.cursor!r} is no cursor of this list", hint=f"angelia room read {name}")
    opened = open_room(session, client, name, key_file)
    most = None if shared.all_pages else shared.limit or PAGE
    found, more = newest(_Pages(opened), most, int(shared.cursor) if shared.cursor else None)
    if not found:
        _nothing(session, f"no messages in {opened.room.name}", f'angelia room post {name} "hello"')
    lines = MessageLines(session, client)
    lines.print(found)
    if more is not None:
        session.out.note(f"{len(found):,} shown; --all or --cursor {more}")
    if verify:
        _verify_authors(session, opened, lines.names, found)


@command.verb(example="angelia room thread build-talk 01M7GDGPVG7T", needs=_ACTS)
@_name
@_message
@_verify
@key_flag
def thread(session: CommandContext, name: str, message: str, verify: bool, key_file: Path | None) -> None:
    """Print a message and the replies under it, each indented below the one that it answers."""
    client = session.as_anyone()
    opened = open_room(session, client, name, key_file)
    id_ = message_id_in(opened, message)
    try:
        found = client.rooms.thread(opened.room.id, id_, key=opened.key)
    except NotFound as error:
        raise NotFound(
            f"there is no message {message} in {opened.room.name}", hint=f"angelia room read {name}"
        ) from error
    lines = MessageLines(session, client)
    lines.print(found.messages)
    if found.has_more:
        session.out.note(f"{len(found.messages):,} shown; a reply shows those under it: angelia room thread {name} ID")
    if verify:
        _verify_authors(session, opened, lines.names, found.messages)


@command.verb(example="angelia room tail build-talk -n 2", needs=_ACTS)
@_name
@click.option("-n", "--limit", "most", type=click.IntRange(0, 10_000), default=10, metavar="N", help="begin with (10)")
@key_flag
def tail(session: CommandContext, name: str, most: int, key_file: Path | None) -> None:
    """Print the newest messages of a room, then what comes, until Ctrl-C.

    A connection that breaks off is opened again where it was: no message is missed or printed twice."""
    client = session.as_anyone()
    opened = open_room(session, client, name, key_file)
    lines = MessageLines(session, client)
    found, _ = newest(_Pages(opened), most) if most else ([], None)
    lines.print(found)
    after = (found[-1].id if found else _BEGINNING) if most else None
    for event in client.rooms.tail(opened.room.id, after=after, key=opened.key):
        lines.print([event])


@command.verb(example="angelia room search build green --room build-talk", needs=_ACTS)
@click.argument("words", metavar="WORD...", nargs=-1, required=True)
@click.option("--room", metavar="NAME", shell_complete=room_names, help="only in this room")
@click.option("--since", "start", type=moment, metavar="T", help="posted since then: 2026-11-15, RFC 3339, 15m")
@click.option("-n", "--limit", "most", type=click.IntRange(1, 100), default=20, metavar="N", help="so many (20)")
@click.option("--require", "must", is_flag=True, help="finding nothing is an error (exit 8)")
def search(
    session: CommandContext, words: tuple[str, ...], room: str | None, start: datetime | None, most: int, must: bool
) -> None:
    """Find messages of public rooms that have all the words, the newest first.

    A word is a run of letters and digits, in any case; the, and, is and the like do not count.
    The first five words count."""
    client = session.as_anyone()
    names = AuthorNames(session, client)
    columns: list[Column[FoundRecord]] = [
        Column("ID", lambda m: short(m.id)),
        Column("ROOM", lambda m: m.room_name, long=True),
        Column("AUTHOR", lambda m: names.of(m.from_), long=True),
        Column("AGE", lambda m: ago(at(m.ts)), right=True),
        Column("TEXT", lambda m: m.body, long=True),
    ]
    within = None if room is None else room_id_of(client, room)
    after = 0 if start is None else int(start.timestamp() * 1000) - 1
    found = client.rooms.search(" ".join(words), room=within, after=max(after, 0), limit=most)
    if not found:
        from angelia.rooms.words import words as words_that_count

        if words_that_count(" ".join(words)):
            why = "nothing found; all words must be in one message of a public room"
        else:
            why = "nothing found; no word of the query counts"
        if must:
            raise NotFound(why, hint="angelia room list")
        session.out.note(why)
    if session.shared.json:
        import msgspec

        session.out.records(msgspec.to_builtins(one) | {"author": names.handle(one.from_)} for one in found)
    else:
        session.out.rows(found, columns)


@command.verb(example="angelia room delete build-talk 01M7GDGPVG7T", needs=_ACTS | Needs.YES)
@_name
@_message
@key_flag
def delete(session: CommandContext, name: str, message: str, key_file: Path | None) -> None:
    """Delete a message of yours, for good. Replies to it stay.

    A private room's key is not needed if ID is whole."""
    client = writer(session)
    room_id = room_id_of(client, name)
    if len(message) == len(_BEGINNING):
        id_ = full_message_id(message, lambda _: (), f"angelia room read {name}")
    else:
        id_ = message_id_in(open_room(session, client, name, key_file), message)
    what = f"the message {id_} of the room {name}"
    if may(session, Deed("delete", "deleting", what, f"angelia room thread {name} {id_}")):
        with next_steps(room_steps(name)):
            client.rooms.delete(room_id, id_)
        session.out.done({"done": "deleted", "room_id": room_id, "id": id_}, f"deleted {what}")


class _Pages:
    """The pages of a room. A long one takes more requests than a minute allows, so the limit is waited out."""

    def __init__(self, opened: OpenRoom) -> None:
        from angelia.client.rate_limit_wait import Patience

        self._opened = opened
        self._patience = Patience(PATIENCE)

    def __call__(self, before: int | None, limit: int) -> tuple[Sequence[MessageRecord], bool]:
        from angelia.client import room_calls
        from angelia.client.rate_limit_wait import patiently

        room, key = self._opened.room, self._opened.key
        asked = room_calls.read(room.id, before=before, limit=min(limit, 200), key=key)
        page = self._opened.client.run(patiently(asked, self._patience))
        return page.messages, page.has_more


def _may_change(
    session: CommandContext, client: Client, room_id: UUID, name: str, keep: int | None, archive: bool | None
) -> bool:
    """Whether to change a room: not in a dry run, and if messages vanish by it, only with a yes."""
    room = None if keep is None else _as_it_is(client, room_id)
    if keep is not None and keep < (_LONGEST_KEEP if room is None else room.retention_seconds):
        look, older = f"angelia room show {name}", f"the messages of {name} that are older than {kept(keep)}"
        if room is None:
            deed = Deed("limit", "limiting", f"the messages of {name} to those of the last {kept(keep)}", look)
        elif room.archive if archive is None else archive:
            deed = Deed("hide", "hiding", older, look)
        else:
            deed = Deed("remove", "removing", older, look)
        return may(session, deed)
    if session.shared.dry_run:
        session.out.note(f"dry run: would change {name} and remove no message; nothing done")
    return not session.shared.dry_run


def _as_it_is(client: Client, room_id: UUID) -> RoomRecord | None:
    """The room, or None for a private one: its creator need not say its key to change it."""
    try:
        return client.rooms.show(room_id)
    except Denied:
        return None


def _nothing(session: CommandContext, text: str, hint: str) -> None:
    if session.shared.require:
        raise NotFound(text, hint=hint)
    session.out.note(text)
    session.out.note(f"hint: {hint}")


def _verify_authors(
    session: CommandContext, opened: OpenRoom, names: AuthorNames, messages: Sequence[MessageRecord]
) -> None:
    """Checks the signature of each message; raises UnprovenAuthor if some prove nothing."""
    from angelia.client import UnprovenAuthor

    unproven = 0
    signed: dict[tuple[UUID, str], str] = {}  # the messages by their authors and nonces
    for one in messages:
        try:
            key = None if one.proof is None else names.profile(one.from_).public_key
            found = opened.client.rooms.verify(opened.room.id, one, public_key=key, key=opened.key)
        except AngeliaError as error:
            session.out.note(f"warning: {short(one.id)} proves no author: {error.message}")
            unproven += 1
            continue
        first = signed.setdefault((found.author, found.nonce), one.id)
        if first != one.id:
            session.out.note(f"warning: {short(one.id)} is the same signed request as {short(first)}, shown twice")
    if unproven:
        raise UnprovenAuthor(f"{unproven:,} of {len(messages):,} messages prove no author")
    session.out.note(f"{len(messages):,} of {len(messages):,} proven, by the keys that this server shows")
