"""A recipient's signed word about one message: delivered, read or failed. A relay cannot invent it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from enum import IntEnum
from uuid import UUID

from angelia.envelope.ids import valid_handle
from angelia.envelope.refusals import Malformed, SignatureFailed
from angelia.envelope.signing import Purpose, Signatures, SigningPair, VerifyingPair, object_holds
from angelia.envelope.wire import counted

MOST_REASON = 1024


class ReceiptStatus(IntEnum):
    DELIVERED = 1
    READ = 2
    FAILED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One receipt; `time_ms` is the recipient's clock."""

    status: ReceiptStatus
    replay_key: str
    message_id: UUID
    sender_nhi: str
    recipient_nhi: str
    time_ms: int
    signer_id: UUID
    reason: str = ""
    signatures: Signatures = field(default=Signatures(b"", b""), repr=False)

    def signed_bytes(self) -> bytes:
        try:
            reason, key, time = self.reason.encode(), bytes.fromhex(self.replay_key), struct.pack(">Q", self.time_ms)
        except (ValueError, struct.error) as error:
            raise Malformed("the reason, the replay key or the time of a receipt cannot be written") from error
        if len(reason) > MOST_REASON:
            raise Malformed(f"the reason of a receipt has at most {MOST_REASON} bytes")
        if not valid_handle(self.sender_nhi) or not valid_handle(self.recipient_nhi):
            raise Malformed("a receipt names two handles")
        if len(key) != 32 or key.hex() != self.replay_key:
            raise Malformed("a replay key has 64 characters 0-9 a-f")
        return b"".join(
            [
                struct.pack(">BB", 1, self.status),
                key,
                self.message_id.bytes,
                counted(self.sender_nhi.encode("ascii")),
                counted(self.recipient_nhi.encode("ascii")),
                time,
                self.signer_id.bytes,
                counted(reason),
            ]
        )


def sign_receipt(receipt: Receipt, pair: SigningPair) -> Receipt:
    """The receipt with both signatures of the recipient's pair."""
    named = replace(receipt, signer_id=pair.public.signer_id)
    return replace(named, signatures=pair.sign_object(Purpose.RECEIPT, named.signed_bytes()))


def check_receipt(receipt: Receipt, recipient: VerifyingPair) -> None:
    if receipt.signer_id != recipient.signer_id or not object_holds(
        recipient, Purpose.RECEIPT, receipt.signed_bytes(), receipt.signatures
    ):
        raise SignatureFailed("the signatures of the receipt do not hold")
