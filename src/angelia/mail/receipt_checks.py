"""Whether the receipts that a recipient hands in are signed by it, and fit the message that they name."""

from __future__ import annotations

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


async def checked_receipt(
    ledger: Ledger, failures: Failures, agent: AgentRow, document: ReceiptDocument, now: datetime
) -> Receipt:
    """The receipt in a document, if its signatures hold by a pair of the recipient's own."""
    receipt = parsed_receipt(agent, document, now)
    async with ledger.reading() as tx:
        [pair] = await admission.signers(tx, [signed_receipt(receipt)], now)
    return await verified_receipt(failures, agent, receipt, pair, now)


def signed_receipt(receipt: Receipt) -> Signed:
    """The claim that a receipt's recipient signed it."""
    return Signed(receipt.recipient_nhi, receipt.signer_id, moment(receipt.time_ms))


def check_fits(receipt: Receipt, message: EnvelopeRow | ReceiptRecord) -> None:
    """Refuses a receipt of another message, or from before this one was made."""
    if (receipt.message_id, receipt.sender_nhi) != (message.message_id, message.sender):
        raise InvalidArgument("the receipt names another message")
    if moment(receipt.time_ms) < message.sent_at - SKEW:
        raise InvalidArgument("the receipt is older than the message", hint="check this machine's clock")


def parsed_receipt(agent: AgentRow, document: ReceiptDocument, now: datetime) -> Receipt:
    """The receipt in a document, whose signatures are still to be verified."""
    receipt = parse_receipt(document)
    if receipt.recipient_nhi != agent.handle:
        raise InvalidArgument("the receipt is another agent's")
    if moment(receipt.time_ms) > now + SKEW:
        raise InvalidArgument("the receipt was signed later than now", hint="check this machine's clock")
    return receipt


async def verified_receipt(
    failures: Failures, agent: AgentRow, receipt: Receipt, pair: VerifyingPair | AngeliaError, now: datetime
) -> Receipt:
    """The receipt, if this pair signed it; raises the error that is in the pair's place."""
    if isinstance(pair, AngeliaError):
        raise pair
    try:
        check_receipt(receipt, pair)
    except SignatureFailed:
        replay_key = bytes.fromhex(receipt.replay_key)
        await failures.record(SIGNATURE, agent.handle, now, replay_key=replay_key, detail={"of": "receipt"})
        raise
    return receipt
