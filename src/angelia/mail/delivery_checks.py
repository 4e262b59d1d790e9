"""Which of the messages that wait may be delivered now: keys, rules and block lists are asked again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from angelia.agents import service as agents
from angelia.keys import admission
from angelia.keys.admission import EnvelopeKeys
from angelia.mail.model import EnvelopeRow
from angelia.policy.model import Action, Wish
from angelia.policy.service import Policy
from angelia.stores.ledger import Tx


async def withheld(tx: Tx, policy: Policy, rows: Sequence[EnvelopeRow], now: datetime) -> tuple[set[bytes], set[bytes]]:
    """Which of these must not be delivered now, whatever was allowed when they were sent. Returns the mrefs of those
    under a revoked key, and of those that the rules or a block forbid at the moment."""
    if not rows:
        return set(), set()
    refused = await policy.check(tx, [Wish(row.sender, Action.SEND, row.recipient) for row in rows], now)
    blocked = await agents.blocked(tx, [(row.sender, row.recipient) for row in rows])
    denied = {
        row.mref
        for row, refusal in zip(rows, refused, strict=True)
        if refusal is not None or (row.sender, row.recipient) in blocked
    }
    return await under_revoked_keys(tx, rows), denied


async def under_revoked_keys(tx: Tx, rows: Sequence[EnvelopeRow]) -> set[bytes]:
    """Which of these, by mref, are sealed to or signed with a key that was revoked since."""
    held = [EnvelopeKeys(row.recipient, row.key_id, row.sender, row.signer_id, row.accepted_at) for row in rows]
    return {rows[at].mref for at in await admission.with_revoked_keys(tx, held)}
