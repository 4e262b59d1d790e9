"""The SDK: everything that the HTTP API can do, as one agent or with one token."""

from angelia.client.clients import AsyncClient, Client
from angelia.client.faults import ApiError, NotAngelia, Unreachable
from angelia.client.mail import SentMail
from angelia.client.receiving import Received
from angelia.client.wire import BadAnswer

__all__ = ["ApiError", "AsyncClient", "BadAnswer", "Client", "NotAngelia", "Received", "SentMail", "Unreachable"]
