"""The verbs of an agent's own keys, each with its rosters signed by its present pair at the end: members believe
nothing that a revoked pair signed, and an owner that rotated and went away must stop nobody."""

from __future__ import annotations

from datetime import datetime

from angelia.client import mailbox_keys
from angelia.client.answers import Published, Schedule
from angelia.client.channel_rosters import resign_rosters
from angelia.client.exchange import Exchange
from angelia.client.mailbox_keys import now
from angelia.keys.model import Reason
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.notices import NoticeKind


def publish_keys(mailbox: Mailbox, *, suites: int | None = None) -> Exchange[Published]:
    """Make the agent reachable: publish its bundle, finish what a crash interrupted, and top up one-time keys."""
    done = yield from mailbox_keys.publish_keys(mailbox, suites=suites)
    yield from resign_rosters(mailbox)
    return done


def rotate_keys(
    mailbox: Mailbox,
    *,
    kem: bool = True,
    signer: bool = False,
    suites: int | None = None,
    reason: Reason = Reason.ON_DEMAND,
) -> Exchange[Published]:
    """Replace the agent's keys; the old ones go into grace. A rotation that was interrupted is finished instead."""
    done = yield from mailbox_keys.rotate_keys(mailbox, kem=kem, signer=signer, suites=suites, reason=reason)
    yield from resign_rosters(mailbox)
    return done


def emergency_rotate_keys(
    mailbox: Mailbox, *, why: str, signer: bool = True, compromised_since: datetime | None = None
) -> Exchange[Published]:
    """Replace keys that somebody else may have. Nothing of them is kept: mail still sealed to them cannot be opened."""
    done = yield from mailbox_keys.emergency_rotate_keys(
        mailbox, why=why, signer=signer, compromised_since=compromised_since
    )
    if (yield from resign_rosters(mailbox)):
        told = (
            "the rosters of your channels are signed anew: look for members whom a thief let in (angelia channel allow)"
        )
        mailbox.notices.tell(NoticeKind.WARNING, told)
    return done


def rotate_due_keys(mailbox: Mailbox) -> Exchange[list[Schedule]]:
    """Rotate once if any schedule asks for it, and report the new key to all that do; returns those."""
    reported = yield from mailbox_keys.rotate_due_keys(mailbox)
    yield from resign_rosters(mailbox)
    return reported


def tend_keys(mailbox: Mailbox) -> Exchange[None]:
    """Keep the agent's own keys fresh while it is in use, and its rosters signed by them. What cannot be done now is
    told, and done later."""
    yield from mailbox_keys.tend_keys(mailbox)
    if not mailbox.own_keys.is_backing_off(now()):
        yield from resign_rosters(mailbox)
