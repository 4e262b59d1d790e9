"""The verbs of an agent's own keys, each with the agent's rosters signed again by the present pair at the end: members
believe no roster of a revoked pair, and the owner may be away when they need it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from angelia.client import clock, own_key_renewal
from angelia.client.exchange import Exchange
from angelia.errors import AngeliaError
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.notices import NoticeKind

P = ParamSpec("P")
T = TypeVar("T")

_AFTER_THEFT = (
    "the rosters of your channels are signed anew: look for members whom a thief let in (angelia channel allow)"
)


def with_rosters(
    verb: Callable[Concatenate[Mailbox, P], Exchange[T]], warning: str | None = None
) -> Callable[Concatenate[Mailbox, P], Exchange[T]]:
    """Returns the verb followed by `resign_rosters`; if that signed any, the warning becomes a notice."""

    @functools.wraps(verb)
    def exchange(mailbox: Mailbox, /, *args: P.args, **kwargs: P.kwargs) -> Exchange[T]:
        done = yield from verb(mailbox, *args, **kwargs)
        yield from _settle_logs(mailbox)
        if (yield from _resign_rosters(mailbox)) and warning is not None:
            mailbox.notices.tell(NoticeKind.WARNING, warning)
        return done

    return exchange


publish_keys = with_rosters(own_key_renewal.publish_keys)
rotate_keys = with_rosters(own_key_renewal.rotate_keys)
emergency_rotate_keys = with_rosters(own_key_renewal.emergency_rotate_keys, _AFTER_THEFT)
rotate_due_keys = with_rosters(own_key_renewal.rotate_due_keys)


def tend_keys(mailbox: Mailbox) -> Exchange[None]:
    """Keeps the agent's own keys fresh while it is in use, and its rosters signed by them. For what cannot be done now
    there is a notice, and it is done later."""
    yield from own_key_renewal.tend_keys(mailbox)
    yield from _settle_logs(mailbox)
    if not mailbox.own_keys.is_backing_off(clock.now()):
        yield from _resign_rosters(mailbox)


def _settle_logs(mailbox: Mailbox) -> Exchange[None]:
    """Brings nodes and members of group logs to what this agent changed, such as its signing key, if some are not."""
    if mailbox.logs.unsettled(clock.now()):
        from angelia.client.log_membership import settle_open

        with contextlib.suppress(AngeliaError, OSError):  # it is done the next time
            yield from settle_open(mailbox)


def _resign_rosters(mailbox: Mailbox) -> Exchange[int]:
    """Does what `resign_rosters` does, and loads it only if there is something to sign: most agents own no channel, and
    this follows every message."""
    with contextlib.suppress(AngeliaError, OSError):  # what reads the rosters next handles it
        if not mailbox.has_rosters_of_former_pairs():
            return 0
    from angelia.client.channel_rosters import resign_rosters

    return (yield from resign_rosters(mailbox))
