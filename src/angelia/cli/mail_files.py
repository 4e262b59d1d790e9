"""Envelopes as files: seals messages to be handed over, and opens those that were."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from angelia.cli import times
from angelia.cli.command_context import CommandContext
from angelia.cli.public_files import not_known
from angelia.errors import AngeliaError, NotFound

if TYPE_CHECKING:
    from angelia.envelope.refusals import UnknownSigner
    from angelia.envelope.wire import Envelope
    from angelia.mailbox.drafts import MessageOptions
    from angelia.mailbox.inbox import Opened
    from angelia.mailbox.mailbox import Mailbox


def sealed_by_hand(
    session: CommandContext, mailbox: Mailbox, recipient: str, content: bytes, options: MessageOptions
) -> Envelope:
    """Seals a message for the recipient's keys by the server, or for those known here if that is unreachable."""
    from angelia.client import Unreachable

    if mailbox.identity.id is None:
        return sealed_alone(mailbox, recipient, content, options)
    try:
        envelope = session.as_agent(mailbox).mail.seal(mailbox, recipient, content, **options)
        mailbox.outbox.hand_over(envelope.replay_key)
        return envelope
    except Unreachable as error:
        if mailbox.pinned_keys.pin(recipient) is None:
            raise
        session.out.note(f"warning: {error.message}, so the keys of {recipient} are those that were known here")
    return sealed_alone(mailbox, recipient, content, options)


def sealed_alone(mailbox: Mailbox, recipient: str, content: bytes, options: MessageOptions) -> Envelope:
    """Seals a message for the keys that are known here, of any age."""
    known = mailbox.pinned_keys.bundle(recipient, times.now(), max_age=None)
    if known is None:
        raise not_known(recipient)
    envelope = mailbox.outbox.seal(known.bundle, content, now=times.now(), **options)
    mailbox.outbox.hand_over(envelope.replay_key)
    return envelope


def received_from(session: CommandContext, mailbox: Mailbox, files: list[Path]) -> list[Opened | AngeliaError]:
    """Opens envelopes in files; returns the message or the refusal of each, after a second try where that may help."""
    from angelia.envelope.refusals import Expired, StaleEnvelope, UnknownSigner
    from angelia.mailbox.envelope_files import read_safely
    from angelia.mailbox.time_window import DeliveryProfile

    contents: list[bytes | AngeliaError] = []
    for file in files:
        try:
            contents.append(read_safely(file, file, most=2 << 20))
        except NotFound:
            contents.append(NotFound(f"there is no file {file}", hint="without FILE, mail comes from the server"))
        except AngeliaError as error:
            contents.append(error)
    readable = [one for one in contents if isinstance(one, bytes)]
    outcomes = iter(mailbox.receive_many(readable, now=times.now(), profile=DeliveryProfile.DIRECT))
    received = [next(outcomes) if isinstance(one, bytes) else one for one in contents]
    for at, content in enumerate(contents):
        refused = received[at]
        if isinstance(refused, UnknownSigner) and mailbox.identity.id is not None and isinstance(content, bytes):
            received[at] = _followed(session, mailbox, content, refused)
        elif isinstance(refused, StaleEnvelope | Expired) and isinstance(content, bytes):
            received[at] = _seen_before(mailbox, content) or refused
        if isinstance(refused := received[at], AngeliaError) and isinstance(content, bytes):
            _explain(session, refused, files[at], content)
    return received


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


def _seen_before(mailbox: Mailbox, content: bytes) -> AngeliaError | None:
    """The refusal of a repeat, if the envelope was opened before it became too old: its stored copy can be read."""
    from angelia.envelope.refusals import Replayed
    from angelia.mailbox.receiving import decoded
    from angelia.mailbox.replay import refuse_seen

    try:
        refuse_seen(mailbox.database, decoded(content).replay_key, times.now())
    except Replayed as replayed:
        return replayed
    return None


def _followed(
    session: CommandContext, mailbox: Mailbox, content: bytes, unknown: UnknownSigner
) -> Opened | AngeliaError:
    """Opens it with the server's help, which knows the bundles that follow if the sender rotated its signing pair."""
    from angelia.client import Unreachable
    from angelia.mailbox.time_window import DeliveryProfile

    try:
        return session.as_agent(mailbox).mail.open(mailbox, content, profile=DeliveryProfile.DIRECT)
    except Unreachable as error:
        session.out.detail(error.message)
        return unknown
    except AngeliaError as error:
        return error
