"""The SDK: an agent of this machine, and everything that the HTTP API can do, as one agent or with one token.

What is named here can be imported from `angelia` as well, and so can every error."""

from angelia.channels.model import ChannelPolicy
from angelia.client.agent import Agent, AsyncAgent
from angelia.client.agent_verbs import CheckedReceipt
from angelia.client.api_errors import ApiError, NotAngelia, Unreachable
from angelia.client.channel_publishing import PublishResult
from angelia.client.channel_reading import OpenedPage, Unopened
from angelia.client.channel_rosters import MissingRoster
from angelia.client.clients import AsyncClient, Client
from angelia.client.delivery_status import Untrue
from angelia.client.exchange import BadAnswer
from angelia.client.mail_receiving import NotOpened, Received
from angelia.client.mail_sending import AlreadyWithdrawn, SentMail
from angelia.client.peer_keys import NoOneTimeKey, Renamed
from angelia.envelope.bundles import UntrustedBundle
from angelia.envelope.crypto_support import UnsupportedCryptography
from angelia.envelope.rosters import UntrustedRoster
from angelia.envelope.wire import Compression, Priority
from angelia.mail.model import DeliveryStatus, Side
from angelia.mailbox.allowlist import AllowedSender
from angelia.mailbox.channels import ChannelMessage, EpochLeapt, EpochWentBack
from angelia.mailbox.database import BrokenDatabase, NewerDatabase
from angelia.mailbox.envelope_files import ChangedFile
from angelia.mailbox.inbox import Message, Opened
from angelia.mailbox.keyfile import BrokenKeyFile, WrongPassphrase
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.outbox_message import OutboxMessage
from angelia.mailbox.private_files import CannotWrite, UnsafeFile
from angelia.mailbox.retry_rules import SealStands

__all__ = [
    "Agent",
    "AllowedSender",
    "AlreadyWithdrawn",
    "ApiError",
    "AsyncAgent",
    "AsyncClient",
    "BadAnswer",
    "BrokenDatabase",
    "BrokenKeyFile",
    "CannotWrite",
    "ChangedFile",
    "ChannelMessage",
    "ChannelPolicy",
    "CheckedReceipt",
    "Client",
    "Compression",
    "DeliveryStatus",
    "EpochLeapt",
    "EpochWentBack",
    "Mailbox",
    "Message",
    "MissingRoster",
    "NewerDatabase",
    "NoOneTimeKey",
    "NotAngelia",
    "NotOpened",
    "Opened",
    "OpenedPage",
    "OutboxMessage",
    "Priority",
    "PublishResult",
    "Received",
    "Renamed",
    "SealStands",
    "SentMail",
    "Side",
    "Unopened",
    "Unreachable",
    "UnsafeFile",
    "UnsupportedCryptography",
    "Untrue",
    "UntrustedBundle",
    "UntrustedRoster",
    "WrongPassphrase",
]
