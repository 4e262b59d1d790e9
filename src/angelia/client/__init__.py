"""The SDK: everything that the HTTP API can do, as one agent or with one token."""

from angelia.client.api_errors import ApiError, NotAngelia, Unreachable
from angelia.client.clients import AsyncClient, Client
from angelia.client.exchange import BadAnswer
from angelia.client.mail_receiving import Received
from angelia.client.mail_sending import SentMail

__all__ = ["ApiError", "AsyncClient", "BadAnswer", "Client", "NotAngelia", "Received", "SentMail", "Unreachable"]
