"""Envelopes as files: seals messages to be handed over, and opens those that were."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from angelia.cli import times
from angelia.cli.command_context import CommandContext
from angelia.cli.public_files import not_known
from angelia.errors import AngeliaError, NotFound

if TYPE_CHECKING:
    from angelia.envelope.wire import Envelope
    from angelia.mailbox.drafts import MessageOptions
    from angelia.mailbox.inbox import Opened
    from angelia.mailbox.mailbox import Mailbox


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
        envelope = mailbox.outbox.seal(known.link, content, now=times.now(), **options)
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
