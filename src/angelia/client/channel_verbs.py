"""The verbs of channels."""

from __future__ import annotations

from uuid import UUID

from angelia.channels import api as channels
from angelia.client import (
    channel_calls,
    channel_key_mail,
    channel_membership,
    channel_publishing,
    channel_reading,
    channel_rosters,
)
from angelia.client.channel_reading import Following, Unopened
from angelia.client.namespaces import Batches, Iteration, Mode, Namespace, Verb
from angelia.client.operation_requests import asking, naming, naming_and_asking
from angelia.mailbox.channels import ChannelMessage
from angelia.mailbox.mailbox import Mailbox


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
