"""Mail as it comes, with events about the agent's keys and sent mail."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from angelia.api import EVENT_STREAM
from angelia.client.event_stream import EventStream
from angelia.client.exchange import BadAnswer
from angelia.client.mail_calls import LeasedMessage
from angelia.client.operation_requests import request_for
from angelia.client.transport import Line
from angelia.envelope import json_form
from angelia.envelope.refusals import Refused
from angelia.keys.model import PrekeysLow, RotationDue
from angelia.mail import api
from angelia.mail.api import LeasedDocument
from angelia.mail.model import DeliveryEvent

PATH = api.STREAM.path

# What a stream brings: leased mail, what became of sent mail, keys that want replacing, keys that run out.
Event: TypeAlias = LeasedMessage | DeliveryEvent | RotationDue | PrekeysLow
_EVENTS = {"receipt": DeliveryEvent, "rotation_due": RotationDue, "prekeys_low": PrekeysLow}


def mail_stream(line: Line, lease_seconds: int = 30) -> EventStream[Event]:
    """The stream of mail; each connection begins with what waits."""
    request = request_for(api.STREAM, query=api.MailStreamQuery(lease_seconds), accept=EVENT_STREAM)
    return EventStream(line, lambda _: request, _event)


def _event(name: str, data: str) -> Event | None:
    try:
        if name == "message":
            leased = msgspec.json.decode(data, type=LeasedDocument)
            return LeasedMessage.of(json_form.decode(bytes(leased.envelope)), leased.lease_token, leased.attempt)
        kind = _EVENTS.get(name)
        return None if kind is None else msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, Refused) as error:
        raise BadAnswer(f"the event {name} of {PATH} cannot be read: {error}") from error
