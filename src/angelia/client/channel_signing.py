"""The verbs of an agent's own keys, each with the agent's rosters signed again by the present pair at the end: members
believe no roster of a revoked pair, and the owner may be away when they need it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Concatenate, ParamSpec, TypeVar

from angelia.client import mailbox_keys
from angelia.client.answers import Published
from angelia.client.channel_rosters import resign_rosters
from angelia.client.exchange import Exchange
from angelia.client.mailbox_keys import now
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.notices import Kind

P = ParamSpec("P")
T = TypeVar("T")


def with_rosters(
    verb: Callable[Concatenate[Mailbox, P], Exchange[T]],
) -> Callable[Concatenate[Mailbox, P], Exchange[T]]:
    """Returns the verb followed by `resign_rosters`."""

    @functools.wraps(verb)
    def exchange(mailbox: Mailbox, /, *args: P.args, **kwargs: P.kwargs) -> Exchange[T]:
        done = yield from verb(mailbox, *args, **kwargs)
        yield from resign_rosters(mailbox)
        return done

    return exchange


publish_keys = with_rosters(mailbox_keys.publish_keys)
rotate_keys = with_rosters(mailbox_keys.rotate_keys)
rotate_due_keys = with_rosters(mailbox_keys.rotate_due_keys)


def emergency_rotate_keys(
    mailbox: Mailbox, *, why: str, signer: bool = True, compromised_since: datetime | None = None
) -> Exchange[Published]:
    """Replaces keys that a thief may have. Nothing of them is kept: mail still sealed to them cannot be opened."""
    done = yield from mailbox_keys.emergency_rotate_keys(
        mailbox, why=why, signer=signer, compromised_since=compromised_since
    )
    if (yield from resign_rosters(mailbox)):
        told = (
            "the rosters of your channels are signed anew: look for members whom a thief let in (angelia channel allow)"
        )
        mailbox.notices.tell(Kind.WARNING, told)
    return done


def tend_keys(mailbox: Mailbox) -> Exchange[None]:
    """Keeps the agent's own keys fresh while it is in use, and its rosters signed by them. For what cannot be done now
    there is a notice, and it is done later."""
    yield from mailbox_keys.tend_keys(mailbox)
    if not mailbox.own.left_alone(now()):
        yield from resign_rosters(mailbox)
