"""Files that agents hand to each other, with and without a server: sealed messages, receipts and key bundles."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from angelia.cli import times
from angelia.cli.command_context import CommandContext
from angelia.errors import AngeliaError, Conflict, KeyNotFound, NotFound, Unauthenticated

if TYPE_CHECKING:
    from angelia.envelope.bundles import Link
    from angelia.envelope.wire import Envelope
    from angelia.mailbox.drafts import MessageOptions
    from angelia.mailbox.inbox import Opened
    from angelia.mailbox.mailbox import Mailbox


@contextmanager
def handing_over(path: Path | None) -> Iterator[BinaryIO]:
    """A new file, opened before anything is done that cannot be done twice; without a path, what is written is dropped.
    An existing file is not overwritten; the new one is removed if the block raises."""
    if path is None:
        yield io.BytesIO()
        return
    try:
        file = path.open("xb")
    except FileExistsError as error:
        raise Conflict(f"{path} is there already, and is not overwritten", hint="choose another name") from error
    try:
        with file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def chain_in(file: Path, name: str) -> list[Link]:
    """The bundles of NAME in a file that it handed over; they are not verified yet."""
    from angelia.mailbox import bundle_file

    links = bundle_file.read(file)
    if links[-1].bundle.agent_nhi != name:
        raise NotFound(f"{file} holds the keys of {links[-1].bundle.agent_nhi}, not of {name}")
    return links


def not_known(name: str) -> KeyNotFound:
    """The error of an agent that has no server and no keys of NAME."""
    return KeyNotFound(
        f"the keys of {name} are not known here",
        hint=f"angelia agent register, to ask a server; or its file of `key publish`: angelia key pin {name} FILE",
    )


def refuse_unregistered(mailbox: Mailbox, without: str = "--out FILE") -> None:
    """Raises Unauthenticated for an agent that is not registered; `without` is the way without a server."""
    identity = mailbox.identity
    if identity.id is None:
        raise Unauthenticated(
            f"{identity.handle} is not registered with a server",
            hint=f"angelia agent register --as {identity.name}; without a server: {without}",
        )


def sealed_by_hand(
    session: CommandContext, mailbox: Mailbox, recipient: str, content: bytes, options: MessageOptions
) -> Envelope:
    """Seals a message for the recipient's keys by the server, or for those known here if that is unreachable."""
    from angelia.client import Unreachable

    envelope: Envelope | None = None
    if mailbox.identity.id is not None:
        try:
            envelope = session.as_agent(mailbox).mail.seal(mailbox, recipient, content, **options)
        except Unreachable as error:
            if mailbox.pinned_keys.pin(recipient) is None:
                raise
            session.out.note(f"warning: {error.message}, so the keys of {recipient} are those that were known here")
    if envelope is None:
        known = mailbox.pinned_keys.bundle(recipient, times.now(), max_age=None)  # of any age
        if known is None:
            raise not_known(recipient)
        envelope = mailbox.outbox.seal(known.bundle, content, now=times.now(), **options)
    mailbox.outbox.hand_over(envelope.replay_key)
    return envelope


def received_from(session: CommandContext, mailbox: Mailbox, files: list[Path]) -> list[Opened | AngeliaError]:
    """Opens envelopes in files; returns the message or the refusal of each, after a second try where that may help."""
    from angelia.mailbox.envelope_files import read_safely
    from angelia.mailbox.time_window import DeliveryProfile

    contents: dict[int, bytes] = {}  # by place: a file may be named twice
    outcomes: dict[int, Opened | AngeliaError] = {}
    for at, file in enumerate(files):
        try:
            contents[at] = read_safely(file, file, most=2 << 20)
        except NotFound:
            outcomes[at] = NotFound(f"there is no file {file}", hint="without FILE, mail comes from the server")
        except AngeliaError as error:
            outcomes[at] = error
    opened = mailbox.receive_many(list(contents.values()), now=times.now(), profile=DeliveryProfile.DIRECT)
    for (at, content), first in zip(contents.items(), opened, strict=True):
        outcomes[at] = outcome = _second_try(session, mailbox, content, first)
        if isinstance(outcome, AngeliaError):
            _explain(session, outcome, files[at], content)
    return [outcomes[at] for at in range(len(files))]


def _explain(session: CommandContext, refused: AngeliaError, file: Path, content: bytes) -> None:
    """Adds a hint to the refusal of a file."""
    from angelia.envelope.refusals import Malformed, WrongRecipient
    from angelia.mailbox.receiving import decoded

    if isinstance(refused, Malformed):
        refused.message = f"the file {file} is no envelope: {refused.message}"
        refused.hint = refused.hint or "`angelia mail send NAME --out FILE` makes one"
    elif isinstance(refused, WrongRecipient):
        recipient = decoded(content).header.recipient_nhi
        if not recipient:
            refused.hint = "`angelia channel tail` reads what was published in a channel"
        elif local := session.local_name(recipient):
            refused.hint = f"angelia mail open {file} --as {local}"
        else:
            refused.hint = f"only {recipient} can open the file {file}: hand it over"


def _second_try(
    session: CommandContext, mailbox: Mailbox, content: bytes, first: Opened | AngeliaError
) -> Opened | AngeliaError:
    """The outcome of a file that was refused, after asking the server for the bundles that follow if the sender rotated
    its signing pair, and the mailbox whether an envelope that is too old was opened before: its stored copy can be
    read."""
    from angelia.client import Unreachable
    from angelia.envelope.refusals import Expired, StaleEnvelope, UnknownSigner
    from angelia.mailbox.receiving import decoded
    from angelia.mailbox.replay import refuse_seen
    from angelia.mailbox.time_window import DeliveryProfile

    try:
        if isinstance(first, UnknownSigner) and mailbox.identity.id is not None:
            return session.as_agent(mailbox).mail.open(mailbox, content, profile=DeliveryProfile.DIRECT)
        if isinstance(first, StaleEnvelope | Expired):
            refuse_seen(mailbox.database, decoded(content).replay_key, times.now())
    except Unreachable as error:
        session.out.detail(error.message)
    except AngeliaError as error:
        return error
    return first
