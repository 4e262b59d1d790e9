"""The verbs of mail, and what goes on without an end, which each of the clients does in its own way."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING

from angelia.client import delivery_status, mail_calls, mail_receiving, mail_sending, peer_keys, request_reply
from angelia.client.namespaces import Awaited, Blocking, Mode, Namespace, Verb
from angelia.client.operation_requests import asking, naming
from angelia.mail import api as mail
from angelia.mailbox.mailbox import Mailbox

if TYPE_CHECKING:
    from angelia.client.async_client import AsyncClient
    from angelia.client.blocking_client import Client
    from angelia.client.mail_stream import Event
    from angelia.client.mailbox_server import Handler


class MailVerbs(Namespace[Mode]):
    """Sealed mail: with a mailbox, or envelope by envelope."""

    send = Verb(mail_sending.send)
    send_sealed = Verb(mail_sending.send_sealed)
    deliver_outbox = Verb(mail_sending.deliver_outbox)
    retry_outbox = Verb(mail_sending.retry_outbox)
    withdraw = Verb(mail_sending.withdraw)
    receive = Verb(mail_receiving.receive)
    receive_admitted = Verb(mail_receiving.receive_admitted)
    take_in = Verb(mail_receiving.take_in)
    update_outbox = Verb(delivery_status.update_outbox)
    update_sent = Verb(delivery_status.update_sent)
    check_attested = Verb(delivery_status.check_attested)
    ask = Verb(request_reply.send_and_wait)
    reply = Verb(request_reply.answer)
    seal = Verb(peer_keys.seal)
    reseal = Verb(peer_keys.reseal)
    open = Verb(peer_keys.open_envelope)
    send_envelope = Verb(mail_calls.send_envelope)
    send_envelopes = Verb(mail_calls.send_envelopes)
    poll = Verb(mail_calls.poll)
    acknowledge = Verb(mail_calls.acknowledge)
    nack = Verb(mail_calls.nack)
    status = Verb(naming(mail.STATUS))
    withdraw_message = Verb(naming(mail.WITHDRAW))
    receipts = Verb(asking(mail.LIST_RECEIPTS, mail.ReceiptQuery))
    receipt = Verb(naming(mail.SHOW_RECEIPT))
    hand_in_receipt = Verb(mail_calls.hand_in_receipt)
    dead_letters = Verb(mail_calls.dead_letters)
    requeue = Verb(naming(mail.REQUEUE))


class BlockingMail(MailVerbs[Blocking]):
    """Mail, with what goes on without an end."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.run)
        self._client = client

    def stream(self, *, lease_seconds: int = 30) -> Generator[Event, None, None]:
        """Yields mail as it comes, and events about the agent's keys and sent mail; opened again when it breaks off.

        `take_in` opens and acknowledges what comes; `contextlib.closing` ends the listening in time."""
        from angelia.client.event_stream import blocking_events
        from angelia.client.mail_stream import mail_stream

        return blocking_events(mail_stream(self._client._line, lease_seconds), self._client._http)


class AsyncMail(MailVerbs[Awaited]):
    """Mail, with what goes on without an end."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client.run)
        self._client = client

    def stream(self, *, lease_seconds: int = 30) -> AsyncGenerator[Event, None]:
        """Yields mail as it comes, and events about the agent's keys and sent mail; opened again when it breaks off.

        `take_in` opens and acknowledges what comes; `contextlib.aclosing` ends the listening in time."""
        from angelia.client.event_stream import events
        from angelia.client.mail_stream import mail_stream

        client = self._client
        return events(mail_stream(client._line, lease_seconds), client._http, client._aside)

    async def serve(self, mailbox: Mailbox, handler: Handler) -> None:
        """Serves a mailbox until cancelled: mail goes to the handler one by one, also mail that was held and whose
        sender is allowed by now; the outbox is sent, receipts are fetched, keys are kept fresh. Passing faults are
        waited for.

        An exception of the handler ends it. The message is in the inbox and was acknowledged, so the handler does not
        get it again."""
        from angelia.client import mailbox_server
        from angelia.client.event_stream import events
        from angelia.client.mail_stream import mail_stream

        client = self._client

        def listen(connected: Callable[[], None]) -> AsyncGenerator[Event, None]:
            return events(mail_stream(client._line), client._http, client._aside, connected)

        await mailbox_server.Serving(mailbox, handler, client.run, client._aside, listen).forever()
