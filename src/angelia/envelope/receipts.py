"""A recipient's signed receipt for one message: delivered, read or failed. A server cannot forge it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from enum import IntEnum
from uuid import UUID

import msgspec

from angelia.envelope.ids import valid_handle
from angelia.envelope.json_form import document_members, object_members
from angelia.envelope.refusals import Malformed, SignatureFailed
from angelia.envelope.signing import Purpose, Signatures, SigningPair, VerifyingPair, object_holds, split_signatures
from angelia.envelope.wire import counted, read_counted

MOST_REASON = 1024


class ReceiptStatus(IntEnum):
    DELIVERED = 1
    READ = 2
    FAILED = 3


_STATUSES = {status.name.lower(): status for status in ReceiptStatus}


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
    """Returns the receipt with both signatures of the recipient's pair."""
    named = replace(receipt, signer_id=pair.public.signer_id)
    return replace(named, signatures=pair.sign_object(Purpose.RECEIPT, named.signed_bytes()))


def check_receipt(receipt: Receipt, recipient: VerifyingPair) -> None:
    if receipt.signer_id != recipient.signer_id or not object_holds(
        recipient, Purpose.RECEIPT, receipt.signed_bytes(), receipt.signatures
    ):
        raise SignatureFailed("the signatures of the receipt do not hold")


class ReceiptDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The JSON form of a receipt. Bytes are base64url without padding, the time Unix milliseconds."""

    status: str
    replay_key: str
    message_id: UUID
    sender_nhi: str
    recipient_nhi: str
    time_ms: int
    signer_id: UUID
    reason: str = ""
    signature_ed25519: str
    signature_ml_dsa: str


def receipt_document(receipt: Receipt) -> ReceiptDocument:
    return ReceiptDocument(**document_members(receipt) | {"status": receipt.status.name.lower()})


def parse_receipt(document: ReceiptDocument) -> Receipt:
    """Returns the receipt of a document; `check_receipt` verifies its signatures."""
    if document.status not in _STATUSES:
        raise Malformed(f"{document.status[:20]!r} is no status of a receipt", hint=", ".join(_STATUSES))
    receipt = Receipt(**object_members(document) | {"status": _STATUSES[document.status]})
    receipt.signed_bytes()
    return receipt


def encode_receipt(receipt: Receipt) -> bytes:
    """Returns the signed bytes, followed by the two signatures."""
    return receipt.signed_bytes() + receipt.signatures.raw


def decode_receipt(content: bytes) -> Receipt:
    """Returns the receipt that `encode_receipt` wrote."""
    signed, signatures = split_signatures(content)
    _, status = struct.unpack_from(">BB", signed)
    at = 2 + 32 + 16
    sender, at = read_counted(signed, at)
    recipient, at = read_counted(signed, at)
    (time_ms,) = struct.unpack_from(">Q", signed, at)
    signer_id = UUID(bytes=signed[at + 8 : at + 24])
    reason, _ = read_counted(signed, at + 24)
    return Receipt(
        status=ReceiptStatus(status),
        replay_key=signed[2:34].hex(),
        message_id=UUID(bytes=signed[34:50]),
        sender_nhi=sender.decode("ascii"),
        recipient_nhi=recipient.decode("ascii"),
        time_ms=time_ms,
        signer_id=signer_id,
        reason=reason.decode(),
        signatures=signatures,
    )
