"""Questions and answers by mail: a question has a correlation id, and its answer carries the same."""

from __future__ import annotations

import time
import uuid
from typing import Unpack

from angelia.client import mail_receiving, mail_sending, peer_keys
from angelia.client.exchange import Exchange
from angelia.client.mail_sending import SentMail
from angelia.errors import DeadlineExceeded
from angelia.mailbox.drafts import SendOptions
from angelia.mailbox.inbox import Opened
from angelia.mailbox.mailbox import Mailbox

# How soon an answer is noticed that another process of the same agent received.
_LOOK = 5.0


def send_and_wait(
    mailbox: Mailbox, recipient: str, body: str | bytes, *, timeout: float = 30.0, **options: Unpack[SendOptions]
) -> Exchange[Opened]:
    """Sends a question and returns the answer; of several, the first. Other mail is left alone.

    After `timeout` seconds it raises DeadlineExceeded; an answer that comes later is mail like any other."""
    deadline = time.monotonic() + timeout
    found, _ = yield from peer_keys.find_keys(mailbox, recipient)
    # An answer that would not be opened is not worth waiting for.
    mailbox.allowlist.check(found.bundle.signer, found.bundle.agent_nhi)
    correlation_id = uuid.uuid4()  # always a new one: an earlier answer must not be taken for this one
    options["correlation_id"] = correlation_id
    sent = yield from mail_sending.send(mailbox, recipient, body, **options)
    answerer = sent.envelope.header.recipient_nhi
    while True:
        answer = mailbox.inbox.answer_to(correlation_id, answerer)
        if answer is not None:
            return answer
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(
                f"{answerer} did not answer within {timeout:.3g} s",
                hint="a late answer is mail like any other: angelia mail receive",
            )
        yield from mail_receiving.receive(mailbox, wait=min(left, _LOOK), most=1, correlation_id=correlation_id)


def answer(mailbox: Mailbox, question: Opened, body: str | bytes, **options: Unpack[SendOptions]) -> Exchange[SentMail]:
    """Answers a message, in its conversation. A message that began none gives its own id as the correlation id."""
    asked = question.message
    options.setdefault("correlation_id", asked.correlation_id or asked.message_id)
    return (yield from mail_sending.send(mailbox, asked.sender, body, **options))
