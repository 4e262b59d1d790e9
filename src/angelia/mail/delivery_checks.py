"""Which messages that wait may be handed over now: as long as their keys stand, and nobody forbids it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from angelia.agents import service as agents
from angelia.keys import admission
from angelia.keys.admission import EnvelopeKeys
from angelia.mail.model import Queued
from angelia.policy.model import Action, Wish
from angelia.policy.service import Policy
from angelia.stores.ledger import Tx


@dataclass(frozen=True, slots=True)
class Withheld:
    """Messages by mref: those under a revoked key, and those that the rules or a block forbid at the moment."""

    fallen: set[bytes]
    denied: set[bytes]

    def __contains__(self, mref: bytes) -> bool:
        return mref in self.fallen or mref in self.denied


async def withheld(tx: Tx, policy: Policy, rows: Sequence[Queued], now: datetime) -> Withheld:
    """What of these must not be handed over. What was allowed when they were sent says nothing about now."""
    if not rows:
        return Withheld(set(), set())
    refused = await policy.check(tx, [Wish(row.sender, Action.SEND, row.recipient) for row in rows], now)
    blocked = await agents.blocked(tx, [(row.sender, row.recipient) for row in rows])
    return Withheld(
        await fallen(tx, rows),
        {
            row.mref
            for row, refusal in zip(rows, refused, strict=True)
            if refusal is not None or (row.sender, row.recipient) in blocked
        },
    )


async def fallen(tx: Tx, rows: Sequence[Queued]) -> set[bytes]:
    """Which of these, by mref, are under a key that was revoked since."""
    held = [EnvelopeKeys(row.recipient, row.key_id, row.sender, row.signer_id, row.accepted_at) for row in rows]
    return {rows[at].mref for at in await admission.with_revoked_keys(tx, held)}
