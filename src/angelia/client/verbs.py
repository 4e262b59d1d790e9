"""The verbs of the clients, by slice. Those that only carry one operation are made from its declaration."""

from __future__ import annotations

import base64
from uuid import UUID

from angelia.agents import api as agents
from angelia.api import PageQuery
from angelia.audit import api as audit
from angelia.channels import api as channels
from angelia.client import (
    channel_calls,
    channel_key_mail,
    channel_membership,
    channel_publishing,
    channel_reading,
    channel_rosters,
    channel_signing,
    delivery_status,
    key_calls,
    mail_calls,
    mail_receiving,
    mail_sending,
    peer_keys,
    request_reply,
)
from angelia.client.channel_reading import Following, Unopened
from angelia.client.exchange import Credential, Exchange
from angelia.client.namespaces import Batches, Iteration, Mode, Namespace, Verb
from angelia.client.operation_requests import ask, asking, credential_for, naming, naming_and_asking, plain
from angelia.guard import api as guard
from angelia.keys import api as keys
from angelia.mail import api as mail
from angelia.mailbox.channels import ChannelMessage
from angelia.mailbox.mailbox import Mailbox
from angelia.monitoring import api as monitoring
from angelia.policy import api as policy
from angelia.policy.model import Action
from angelia.runs import api as runs


def _register(
    public_key: bytes, *, name: str | None = None, email: str | None = None
) -> Exchange[agents.RegisterAnswer]:
    """Registers an Ed25519 key. Repeating it gives the same agent; signed, it may change name and e-mail."""
    body = agents.RegisterBody(base64.b64encode(public_key).decode(), name or "", email or "")
    return ask(agents.REGISTER, body=body, credential=Credential.AGENT)


def _check_policy(action: Action, object: str, *, subject: str | None = None) -> Exchange[policy.PolicyDecision]:
    """Returns what the rules say about the agent that signs. Operators ask about any `subject`, and learn the rule."""
    body = policy.PolicyCheckBody(subject=subject, action=action, object=object)
    return ask(policy.CHECK, body=body, credential=credential_for(subject))


class AgentVerbs(Namespace[Mode]):
    """Registration, profiles, handles and block lists of agents."""

    register = Verb(_register)
    profile = Verb(naming(agents.WHO))
    me = Verb(plain(agents.ME))
    claim_handle = Verb(asking(agents.CLAIM_HANDLE, agents.HandleBody))
    update = Verb(asking(agents.UPDATE, agents.AgentChange))
    list = Verb(asking(agents.LIST, agents.AgentQuery))
    show = Verb(naming(agents.SHOW))
    blocked = Verb(asking(agents.LIST_BLOCKED, PageQuery))
    block = Verb(naming(agents.BLOCK))
    unblock = Verb(naming(agents.UNBLOCK))


class TokenVerbs(Namespace[Mode]):
    """Bearer tokens."""

    list = Verb(asking(guard.LIST_TOKENS, PageQuery))
    create = Verb(asking(guard.MAKE_TOKEN, guard.TokenBody))
    revoke = Verb(naming(guard.REVOKE_TOKEN))


class GuardVerbs(Namespace[Mode]):
    """Blocked addresses."""

    blocks = Verb(asking(guard.LIST_BLOCKS, PageQuery))
    block = Verb(asking(guard.BLOCK_ADDRESS, guard.BlockBody))
    unblock = Verb(naming(guard.UNBLOCK_ADDRESS))


class PolicyVerbs(Namespace[Mode]):
    """Rules: which agents may send, publish, subscribe and read keys."""

    list = Verb(asking(policy.LIST, PageQuery))
    add = Verb(asking(policy.ADD, policy.PolicyRuleBody))
    remove = Verb(naming(policy.REMOVE))
    check = Verb(_check_policy)


class KeyVerbs(Namespace[Mode]):
    """Key bundles, one-time keys, rotation and its schedules."""

    publish_bundle = Verb(key_calls.publish_bundle)
    rotate_bundle = Verb(key_calls.rotate_bundle)
    emergency_bundle = Verb(key_calls.emergency_bundle)
    bundle = Verb(key_calls.bundle)
    bundles_since = Verb(key_calls.bundles_since)
    add_one_time_keys = Verb(key_calls.add_one_time_keys)
    count_one_time_keys = Verb(plain(keys.COUNT_ONE_TIME_KEYS))
    revoke = Verb(naming_and_asking(keys.REVOKE, keys.RevokeBody))
    history = Verb(naming_and_asking(keys.HISTORY, PageQuery))
    schedules = Verb(key_calls.schedules)
    put_schedule = Verb(key_calls.put_schedule)
    remove_schedule = Verb(key_calls.remove_schedule)
    report_rotation = Verb(naming_and_asking(keys.REPORT_ROTATION, keys.RotatedBody))
    publish = Verb(channel_signing.publish_keys)
    rotate = Verb(channel_signing.rotate_keys)
    emergency_rotate = Verb(channel_signing.emergency_rotate_keys)
    rotate_due = Verb(channel_signing.rotate_due_keys)
    renew_due = Verb(channel_signing.tend_keys)
    find = Verb(peer_keys.find_keys)


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


class ChannelVerbs(Namespace[Mode]):
    """Sealed topics: their lives, members, keys and messages."""

    create = Verb(channel_membership.create_channel)
    find = Verb(channel_membership.find_channel)
    look_up = Verb(channel_membership.look_up_channel)
    list = Verb(asking(channels.LIST, channels.ChannelQuery))
    show = Verb(channel_calls.channel)
    update = Verb(channel_membership.update_channel)
    delete = Verb(channel_membership.delete_channel)
    allowlist = Verb(naming_and_asking(channels.LIST_ALLOWED, channels.NamePageQuery))
    allow = Verb(channel_membership.allow)
    disallow = Verb(channel_membership.disallow)
    roster = Verb(channel_membership.roster)
    propose_roster = Verb(channel_membership.propose_roster)
    sign_roster = Verb(channel_membership.sign_roster)
    stored_roster = Verb(channel_calls.stored_roster)
    put_roster = Verb(channel_calls.put_roster)
    resign_rosters = Verb(channel_rosters.resign_rosters)
    subscribe = Verb(channel_membership.subscribe)
    unsubscribe = Verb(channel_membership.unsubscribe)
    pause = Verb(naming(channels.PAUSE))
    resume = Verb(naming(channels.RESUME))
    publish = Verb(channel_publishing.publish)
    publish_envelope = Verb(channel_calls.publish_envelope)
    share_key = Verb(channel_publishing.share_key)
    take_keys = Verb(channel_key_mail.take_keys)
    messages = Verb(channel_calls.channel_messages)
    read = Verb(channel_reading.read_channel)
    follow = Verb(channel_reading.Tail.next)
    commit = Verb(naming_and_asking(channels.COMMIT, channels.CommitBody))
    set_epoch = Verb(naming_and_asking(channels.SET_EPOCH, channels.EpochBody))
    subscribers = Verb(naming_and_asking(channels.LIST_SUBSCRIBERS, channels.SubscribersQuery))

    @Iteration
    def tail(
        self, mailbox: Mailbox, channel: str | UUID, *, after_offset: int | None = None
    ) -> Batches[ChannelMessage | Unopened]:
        """Yields the messages of a channel as they come, without end; `commit` sets the offset to go on after."""
        return Following(mailbox, channel, after_offset)


class AuditVerbs(Namespace[Mode]):
    """What happened, and the chain that proves it."""

    events = Verb(asking(audit.EVENTS, audit.EventQuery))
    chain = Verb(asking(audit.CHAIN, audit.PositionQuery))
    checkpoints = Verb(asking(audit.CHECKPOINTS, audit.PositionQuery))
    checkpoint = Verb(naming(audit.CHECKPOINT))
    unsealed = Verb(asking(audit.UNSEALED, audit.UnsealedQuery))


class RunVerbs(Namespace[Mode]):
    """Runs of the pipeline."""

    list = Verb(asking(runs.LIST, runs.RunQuery))


class ServerVerbs(Namespace[Mode]):
    """The server itself: its state, its settings and its key."""

    health = Verb(plain(monitoring.HEALTH))
    alive = Verb(plain(monitoring.ALIVE))
    settings = Verb(plain(monitoring.SETTINGS))
    node = Verb(plain(keys.NODE))
