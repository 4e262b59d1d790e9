"""The verbs of an agent, by slice: those of the clients with its mailbox given, and text where those take bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Concatenate, Literal, ParamSpec, TypeVar
from uuid import UUID

import msgspec

from angelia.agents import api as agents
from angelia.api import PageQuery
from angelia.channels import api as channels
from angelia.channels.model import Subscription
from angelia.client import (
    channel_membership,
    channel_publishing,
    channel_reading,
    channel_signing,
    clock,
    delivery_status,
    dm_calls,
    mail_receiving,
    mail_sending,
    peer_keys,
    request_reply,
)
from angelia.client.channel_reading import Following, OpenedPage, Unopened
from angelia.client.event_stream import is_passing
from angelia.client.exchange import Exchange
from angelia.client.mail_listening import Listening
from angelia.client.namespaces import Batches, Iteration, Mode, OwnNamespace, OwnVerb, Pages, Run, Verb
from angelia.client.operation_requests import ask, asking, naming
from angelia.errors import AngeliaError, NotFound
from angelia.mail import api as mail
from angelia.mail.model import DeliveryStatus, ReceiptRecord, Side
from angelia.mailbox.allowlist import AllowedSender
from angelia.mailbox.channels import ChannelMessage
from angelia.mailbox.inbox import Message, Opened
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.outbox_message import OutboxMessage

P = ParamSpec("P")
T = TypeVar("T")
_PAGE = 200


class CheckedReceipt(ReceiptRecord, frozen=True, kw_only=True):
    """What became of one message. `by` is on whose word: `recipient` only if its signatures hold, and `status` is then
    what it signed; `relay` if only the server says so; `unproven` if a signature does not hold; empty while the
    message waits."""

    by: Literal["recipient", "relay", "unproven", ""]


def _allow(mailbox: Mailbox, agent: str, *, label: str | None = None) -> Exchange[AllowedSender]:
    """Opens the mail of an agent from now on. Its keys come from the server, unless they are known already."""
    if mailbox.pinned_keys.pin(agent) is None:
        yield from peer_keys.find_keys(mailbox, agent)
    return mailbox.allowlist.allow(agent, clock.now(), label)


def _deny(mailbox: Mailbox, agent: str) -> Exchange[None]:
    """Opens no more mail of an agent."""
    yield from ()
    if not mailbox.allowlist.deny(agent):
        raise NotFound(f"{agent} is not on the allowlist", hint="angelia mail allow")


def _allowed(mailbox: Mailbox) -> Exchange[list[AllowedSender]]:
    """Returns the agents whose mail is opened."""
    yield from ()
    return mailbox.allowlist.entries()


def _read(mailbox: Mailbox, replay_key: str) -> Exchange[Opened]:
    """Returns a message of the inbox with its content, by its id or the beginning of that, and marks it read."""
    yield from ()
    return mailbox.inbox.read(replay_key, clock.now())


class AgentMail(OwnNamespace[Mode]):
    """Sealed mail of one agent. The content of a message is text or bytes."""

    def __init__(self, run: Run, mailbox: Mailbox) -> None:
        super().__init__(run, mailbox)
        self.loops: list[Listening] = []

    send = OwnVerb(mail_sending.send)
    reply = OwnVerb(request_reply.answer)
    ask = OwnVerb(request_reply.send_and_wait)
    receive = OwnVerb(mail_receiving.receive)
    read = OwnVerb(_read)
    withdraw = OwnVerb(mail_sending.withdraw)
    deliver_outbox = OwnVerb(mail_sending.deliver_outbox)
    update_outbox = OwnVerb(delivery_status.update_outbox)
    allow = OwnVerb(_allow)
    deny = OwnVerb(_deny)
    allowed = OwnVerb(_allowed)
    block = Verb(naming(agents.BLOCK))
    unblock = Verb(naming(agents.UNBLOCK))
    blocked = Verb(asking(agents.LIST_BLOCKED, PageQuery))

    @Iteration
    def listen(self) -> Batches[Opened]:
        """Yields mail as it comes, without end: opened, in the inbox and acknowledged. Beside it the outbox is sent,
        receipts are fetched and keys are kept fresh. A server that is away is waited for.

        A message is done with when the loop asks for the next one or is left. A process that is killed before, and a
        loop that follows one that was cancelled before, gets the message again."""
        return Listening(self._mailbox, self.loops)

    @Iteration
    def inbox(self) -> Batches[Message]:
        """Yields the messages that were received, newest first, without their content."""

        def page(cursor: str | None) -> Exchange[tuple[Sequence[Message], str | None]]:
            yield from ()
            found = self._mailbox.inbox.page(_PAGE, cursor)
            return found.messages, found.after

        return Pages(page)

    @Iteration
    def outbox(self) -> Batches[OutboxMessage]:
        """Yields the messages that were sealed here, newest first: how far each has come."""

        def page(cursor: str | None) -> Exchange[tuple[Sequence[OutboxMessage], str | None]]:
            yield from ()
            found = self._mailbox.outbox.page(_PAGE, cursor)
            return found, found[-1].replay_key if found else None

        return Pages(page)

    @Iteration
    def receipts(
        self, *, status: DeliveryStatus | None = None, since: datetime | None = None, side: Side | None = None
    ) -> Batches[CheckedReceipt]:
        """Yields what became of all messages that the agent sent and received, or of one side, newest first. Every
        signature is checked."""

        def page(cursor: str | None) -> Exchange[tuple[Sequence[CheckedReceipt], str | None]]:
            query = mail.ReceiptQuery(status=status, since=since, side=side, cursor=cursor, limit=_PAGE)
            found = yield from ask(mail.LIST_RECEIPTS, query=query)
            checked = []
            for answer in found.receipts:
                checked.append((yield from _checked(self._mailbox, answer)))
            return checked, found.next

        return Pages(page)


def _checked(mailbox: Mailbox, answer: ReceiptRecord) -> Exchange[CheckedReceipt]:
    facts = msgspec.structs.asdict(answer)
    if answer.status is DeliveryStatus.PENDING:
        return CheckedReceipt(**facts, by="")
    try:
        receipt = yield from delivery_status.check_attested(mailbox, answer)
    except AngeliaError as error:
        if is_passing(error):
            raise
        return CheckedReceipt(**facts, by="unproven")
    if receipt is None:
        return CheckedReceipt(**facts, by="relay")
    return CheckedReceipt(**{**facts, "status": DeliveryStatus(receipt.status.name.lower())}, by="recipient")


def _read_page(
    mailbox: Mailbox, channel: str | UUID, *, after_offset: int | None = None, max_messages: int = 10, wait: int = 0
) -> Exchange[OpenedPage]:
    """Returns the next messages of a channel: after an offset, or after what was committed. To read commits nothing."""
    found = yield from channel_membership.find_channel(mailbox, channel)
    page = channel_reading.read_channel(
        mailbox, found.channel_id, after_offset=after_offset, max_messages=max_messages, wait=wait, name=found.name
    )
    return (yield from page)


def _commit(message: ChannelMessage) -> Exchange[Subscription]:
    """Commits a message: the next reading begins after it."""
    return ask(channels.COMMIT, message.channel_id, body=channels.CommitBody(message.offset))


def _named(
    act: Callable[Concatenate[UUID, P], Exchange[T]],
) -> Callable[Concatenate[Mailbox, str | UUID, P], Exchange[T]]:
    """Returns the verb for a channel that is named as `AgentChannels` says."""

    def verb(mailbox: Mailbox, channel: str | UUID, /, *args: P.args, **kwargs: P.kwargs) -> Exchange[T]:
        found = yield from channel_membership.look_up_channel(mailbox, channel)
        return (yield from act(found.channel_id, *args, **kwargs))

    verb.__doc__ = act.__doc__
    return verb


class AgentChannels(OwnNamespace[Mode]):
    """Sealed topics, for one agent. A channel is named by its id, as `owner/name`, or by the name alone if the agent
    owns it."""

    create = OwnVerb(channel_membership.create_channel)
    find = OwnVerb(channel_membership.find_channel)
    list = Verb(asking(channels.LIST, channels.ChannelQuery))
    update = OwnVerb(channel_membership.update_channel)
    delete = OwnVerb(channel_membership.delete_channel)
    allow = OwnVerb(channel_membership.allow)
    disallow = OwnVerb(channel_membership.disallow)
    roster = OwnVerb(channel_membership.roster)
    subscribe = OwnVerb(channel_membership.subscribe)
    unsubscribe = OwnVerb(channel_membership.unsubscribe)
    pause = OwnVerb(_named(naming(channels.PAUSE)))
    resume = OwnVerb(_named(naming(channels.RESUME)))
    publish = OwnVerb(channel_publishing.publish)
    share_key = OwnVerb(channel_publishing.share_key)
    read = OwnVerb(_read_page)
    commit = Verb(_commit)

    @Iteration
    def tail(self, channel: str | UUID, *, after_offset: int | None = None) -> Batches[ChannelMessage | Unopened]:
        """Yields the messages of a channel as they come, without end; `commit` commits one."""
        return Following(self._mailbox, channel, after_offset)


class AgentDms(OwnNamespace[Mode]):
    """Direct messages of one agent, hidden from the server and not signed end to end; sealed mail is both."""

    send = OwnVerb(dm_calls.send_dm)
    read = OwnVerb(dm_calls.read_dms)
    delete = Verb(dm_calls.delete_dm)


class AgentKeys(OwnNamespace[Mode]):
    """The keys of one agent, and whose keys it believes."""

    publish = OwnVerb(channel_signing.publish_keys)
    rotate = OwnVerb(channel_signing.rotate_keys)
    emergency_rotate = OwnVerb(channel_signing.emergency_rotate_keys)
    rotate_due = OwnVerb(channel_signing.rotate_due_keys)
    renew_due = OwnVerb(channel_signing.tend_keys)
    find = OwnVerb(peer_keys.find_keys)
