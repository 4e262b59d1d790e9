"""Whether the receipts that a recipient hands in are signed by it, and fit the message that they name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from angelia.api import AgentRow
from angelia.audit.failures import SIGNATURE, Failures
from angelia.envelope.receipts import Receipt, ReceiptDocument, check_receipt, parse_receipt
from angelia.envelope.refusals import SignatureFailed
from angelia.envelope.signing import VerifyingPair
from angelia.envelope.times import SKEW, moment
from angelia.errors import AngeliaError, InvalidArgument
from angelia.keys import admission
from angelia.keys.admission import Signed
from angelia.mail.model import EnvelopeRow, ReceiptRecord
from angelia.stores.ledger import Ledger


async def checked_receipts(
    ledger: Ledger, failures: Failures, agent: AgentRow, documents: Sequence[ReceiptDocument | None], now: datetime
) -> list[Receipt | AngeliaError | None]:
    """For each document the receipt, if its signatures hold by a pair of the recipient's own, else the error; None
    where there is no document."""
    parsed = [_parsed(agent, document, now) for document in documents]
    signed = [
        Signed(one.recipient_nhi, one.signer_id, moment(one.time_ms)) for one in parsed if isinstance(one, Receipt)
    ]
    if not signed:
        return list(parsed)
    async with ledger.reading() as tx:
        pairs = iter(await admission.signers(tx, signed, now))
    return [
        await _verified(failures, agent, one, next(pairs), now) if isinstance(one, Receipt) else one for one in parsed
    ]


def check_fits(receipt: Receipt, message: EnvelopeRow | ReceiptRecord) -> None:
    """Refuses a receipt of another message, or from before this one was made."""
    if (receipt.message_id, receipt.sender_nhi) != (message.message_id, message.sender):
        raise InvalidArgument("the receipt names another message")
    if moment(receipt.time_ms) < message.sent_at - SKEW:
        raise InvalidArgument("the receipt is older than the message", hint="check this machine's clock")


def _parsed(agent: AgentRow, document: ReceiptDocument | None, now: datetime) -> Receipt | AngeliaError | None:
    if document is None:
        return None
    try:
        receipt = parse_receipt(document)
        if receipt.recipient_nhi != agent.handle:
            raise InvalidArgument("the receipt is another agent's")
        if moment(receipt.time_ms) > now + SKEW:
            raise InvalidArgument("the receipt was signed later than now", hint="check this machine's clock")
    except AngeliaError as error:
        return error
    return receipt


async def _verified(
    failures: Failures, agent: AgentRow, receipt: Receipt, pair: VerifyingPair | AngeliaError, now: datetime
) -> Receipt | AngeliaError:
    if isinstance(pair, AngeliaError):
        return pair
    await asyncio.sleep(0)  # a hundred of them are not checked in one go
    try:
        check_receipt(receipt, pair)
    except SignatureFailed as error:
        replay_key = bytes.fromhex(receipt.replay_key)
        await failures.record(SIGNATURE, agent.handle, now, replay_key=replay_key, detail={"of": "receipt"})
        return error
    return receipt
