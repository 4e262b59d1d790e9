"""The SDK: an agent of this machine, and everything that the HTTP API can do, as one agent or with one token.

What is named here can be imported from `angelia` as well, and so can every error. A name's module is imported when the
name is first used, so that a command or a script loads no more than it needs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from angelia.channels.model import ChannelPolicy as ChannelPolicy
    from angelia.client.agent import Agent as Agent
    from angelia.client.agent import AsyncAgent as AsyncAgent
    from angelia.client.agent_verbs import CheckedReceipt as CheckedReceipt
    from angelia.client.api_errors import ApiError as ApiError
    from angelia.client.api_errors import NotAngelia as NotAngelia
    from angelia.client.api_errors import Unreachable as Unreachable
    from angelia.client.async_client import AsyncClient as AsyncClient
    from angelia.client.author_proofs import UnprovenAuthor as UnprovenAuthor
    from angelia.client.author_proofs import VerifiedAuthor as VerifiedAuthor
    from angelia.client.blocking_client import Client as Client
    from angelia.client.channel_publishing import PublishResult as PublishResult
    from angelia.client.channel_reading import OpenedPage as OpenedPage
    from angelia.client.channel_reading import Unopened as Unopened
    from angelia.client.channel_rosters import MissingRoster as MissingRoster
    from angelia.client.delivery_status import Untrue as Untrue
    from angelia.client.dm_calls import Dm as Dm
    from angelia.client.exchange import BadAnswer as BadAnswer
    from angelia.client.log_membership import LogNode as LogNode
    from angelia.client.mail_receiving import NotOpened as NotOpened
    from angelia.client.mail_receiving import Received as Received
    from angelia.client.mail_sending import AlreadyWithdrawn as AlreadyWithdrawn
    from angelia.client.mail_sending import SentMail as SentMail
    from angelia.client.peer_keys import NoOneTimeKey as NoOneTimeKey
    from angelia.client.peer_keys import Renamed as Renamed
    from angelia.client.queue_calls import ConfiguredQueue as ConfiguredQueue
    from angelia.client.queue_calls import SettledMessage as SettledMessage
    from angelia.client.queue_messages import PushedMessage as PushedMessage
    from angelia.client.queue_messages import QueueItem as QueueItem
    from angelia.client.queue_messages import QueueMessage as QueueMessage
    from angelia.client.queue_transactions import QueueTransaction as QueueTransaction
    from angelia.envelope.aicq_dm import DmNotOpened as DmNotOpened
    from angelia.envelope.bundles import UntrustedBundle as UntrustedBundle
    from angelia.envelope.crypto_support import UnsupportedCryptography as UnsupportedCryptography
    from angelia.envelope.rosters import UntrustedRoster as UntrustedRoster
    from angelia.envelope.wire import Compression as Compression
    from angelia.envelope.wire import Priority as Priority
    from angelia.mail.model import DeliveryStatus as DeliveryStatus
    from angelia.mail.model import Side as Side
    from angelia.mailbox.allowlist import AllowedSender as AllowedSender
    from angelia.mailbox.channels import ChannelMessage as ChannelMessage
    from angelia.mailbox.channels import EpochLeapt as EpochLeapt
    from angelia.mailbox.channels import EpochWentBack as EpochWentBack
    from angelia.mailbox.database import BrokenDatabase as BrokenDatabase
    from angelia.mailbox.database import NewerDatabase as NewerDatabase
    from angelia.mailbox.envelope_files import ChangedFile as ChangedFile
    from angelia.mailbox.inbox import Message as Message
    from angelia.mailbox.inbox import Opened as Opened
    from angelia.mailbox.keyfile import BrokenKeyFile as BrokenKeyFile
    from angelia.mailbox.keyfile import WrongPassphrase as WrongPassphrase
    from angelia.mailbox.log_application import LogApplication as LogApplication
    from angelia.mailbox.log_application import LogEntry as LogEntry
    from angelia.mailbox.log_journal import Journal as Journal
    from angelia.mailbox.log_replica import OwnSeqUnknown as OwnSeqUnknown
    from angelia.mailbox.logs import EarlierEpoch as EarlierEpoch
    from angelia.mailbox.logs import LaterEpoch as LaterEpoch
    from angelia.mailbox.logs import UnknownSender as UnknownSender
    from angelia.mailbox.mailbox import Mailbox as Mailbox
    from angelia.mailbox.outbox_message import OutboxMessage as OutboxMessage
    from angelia.mailbox.private_files import CannotWrite as CannotWrite
    from angelia.mailbox.private_files import UnsafeFile as UnsafeFile
    from angelia.mailbox.retry_rules import SealStands as SealStands
    from angelia.rooms.api import DeletedMessage as DeletedMessage
    from angelia.rooms.api import MessageRecord as MessageRecord
else:
    # The same list for the interpreter; a test compares the two.
    _NAMES = {
        "angelia.channels.model": "ChannelPolicy",
        "angelia.client.agent": "Agent AsyncAgent",
        "angelia.client.agent_verbs": "CheckedReceipt",
        "angelia.client.api_errors": "ApiError NotAngelia Unreachable",
        "angelia.client.async_client": "AsyncClient",
        "angelia.client.author_proofs": "UnprovenAuthor VerifiedAuthor",
        "angelia.client.blocking_client": "Client",
        "angelia.client.channel_publishing": "PublishResult",
        "angelia.client.channel_reading": "OpenedPage Unopened",
        "angelia.client.channel_rosters": "MissingRoster",
        "angelia.client.delivery_status": "Untrue",
        "angelia.client.dm_calls": "Dm",
        "angelia.client.exchange": "BadAnswer",
        "angelia.client.log_membership": "LogNode",
        "angelia.client.mail_receiving": "NotOpened Received",
        "angelia.client.mail_sending": "AlreadyWithdrawn SentMail",
        "angelia.client.peer_keys": "NoOneTimeKey Renamed",
        "angelia.client.queue_calls": "ConfiguredQueue SettledMessage",
        "angelia.client.queue_messages": "PushedMessage QueueItem QueueMessage",
        "angelia.client.queue_transactions": "QueueTransaction",
        "angelia.envelope.aicq_dm": "DmNotOpened",
        "angelia.envelope.bundles": "UntrustedBundle",
        "angelia.envelope.crypto_support": "UnsupportedCryptography",
        "angelia.envelope.rosters": "UntrustedRoster",
        "angelia.envelope.wire": "Compression Priority",
        "angelia.mail.model": "DeliveryStatus Side",
        "angelia.mailbox.allowlist": "AllowedSender",
        "angelia.mailbox.channels": "ChannelMessage EpochLeapt EpochWentBack",
        "angelia.mailbox.database": "BrokenDatabase NewerDatabase",
        "angelia.mailbox.envelope_files": "ChangedFile",
        "angelia.mailbox.inbox": "Message Opened",
        "angelia.mailbox.keyfile": "BrokenKeyFile WrongPassphrase",
        "angelia.mailbox.log_application": "LogApplication LogEntry",
        "angelia.mailbox.log_journal": "Journal",
        "angelia.mailbox.log_replica": "OwnSeqUnknown",
        "angelia.mailbox.logs": "EarlierEpoch LaterEpoch UnknownSender",
        "angelia.mailbox.mailbox": "Mailbox",
        "angelia.mailbox.outbox_message": "OutboxMessage",
        "angelia.mailbox.private_files": "CannotWrite UnsafeFile",
        "angelia.mailbox.retry_rules": "SealStands",
        "angelia.rooms.api": "DeletedMessage MessageRecord",
    }
    _HOME_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
    __all__ = sorted(_HOME_OF)

    def __getattr__(name):
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
        return found

    def __dir__():
        return [*globals(), *_HOME_OF]
