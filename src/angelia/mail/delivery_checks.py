"""Which of the messages that wait may be delivered now: keys, rules and block lists are asked again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from angelia.keys import admission
from angelia.keys.admission import EnvelopeKeys
from angelia.mail.model import DeliverableRow, EnvelopeRow
from angelia.policy.model import Action, Wish
from angelia.policy.service import Policy
from angelia.stores.ledger import Tx


async def withheld(
    tx: Tx, policy: Policy, found: Sequence[DeliverableRow], now: datetime
) -> tuple[set[bytes], set[bytes]]:
    """Which of these must not be delivered now. Returns the mrefs of those under a revoked key, and of those that the
    rules or a block forbid at the moment."""
    if not found:
        return set(), set()
    wishes = [Wish(one.row.sender, Action.SEND, one.row.recipient) for one in found]
    refused = await policy.check(tx, wishes, now, found[0].rules_version)
    denied = {one.row.mref for one, refusal in zip(found, refused, strict=True) if refusal is not None or one.blocked}
    return {one.row.mref for one in found if one.revoked}, denied


async def under_revoked_keys(tx: Tx, rows: Sequence[EnvelopeRow]) -> set[bytes]:
    """Which of these, by mref, are sealed to or signed with a key that was revoked since."""
    held = [EnvelopeKeys(row.recipient, row.key_id, row.sender, row.signer_id, row.accepted_at) for row in rows]
    return {rows[at].mref for at in await admission.with_revoked_keys(tx, held)}
