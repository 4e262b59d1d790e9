"""The checks of a roster before the server stores it: of this channel, of now, and signed by the channel's owner."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from angelia.envelope.rosters import Roster, check_roster
from angelia.envelope.times import SKEW, moment
from angelia.errors import AngeliaError, ClockSkew, InvalidArgument
from angelia.keys.admission import Signed, signers
from angelia.stores.ledger import Tx


def refuse_another(roster: Roster, channel_id: UUID, owner: str, name: str) -> None:
    """Refuses the roster of another channel than this."""
    if (roster.channel_id, roster.owner_nhi, roster.channel_name) != (channel_id, owner, name):
        raise InvalidArgument("the roster is that of another channel", hint=f"sign one for {owner}/{name}")


async def check_signed(tx: Tx, roster: Roster, now: datetime) -> None:
    """Refuses a roster whose time or signature does not hold.

    Readers compare the times of rosters to tell a channel that was deleted and created again from the old one, so an
    owner whose clock is off must not sign."""
    issued_at = moment(roster.issued_at)
    if abs(issued_at - now) > SKEW:
        raise ClockSkew(
            f"the roster was signed {abs((issued_at - now).total_seconds()):,.0f} s off this server's clock",
            hint=f"at most {SKEW.seconds} s; run a time service, and sign it again",
        )
    [pair] = await signers(tx, [Signed(roster.owner_nhi, roster.signer_id, issued_at)], now)
    if isinstance(pair, AngeliaError):
        raise pair
    check_roster(roster, pair)
