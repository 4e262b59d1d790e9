"""A recipient's signed word about one message: delivered, read or failed. A relay cannot invent it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from enum import IntEnum
from uuid import UUID

import msgspec

from angelia.envelope.ids import valid_handle
from angelia.envelope.json_form import from_text, to_text
from angelia.envelope.refusals import Malformed, SignatureFailed
from angelia.envelope.signing import (
    ED25519_SIGNATURE,
    ML_DSA_SIGNATURE,
    Purpose,
    Signatures,
    SigningPair,
    VerifyingPair,
    object_holds,
)
from angelia.envelope.wire import counted

MOST_REASON = 1024
_SIGNATURES = ED25519_SIGNATURE + ML_DSA_SIGNATURE


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
    """The receipt with both signatures of the recipient's pair."""
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
    return ReceiptDocument(
        status=receipt.status.name.lower(),
        replay_key=receipt.replay_key,
        message_id=receipt.message_id,
        sender_nhi=receipt.sender_nhi,
        recipient_nhi=receipt.recipient_nhi,
        time_ms=receipt.time_ms,
        signer_id=receipt.signer_id,
        reason=receipt.reason,
        signature_ed25519=to_text(receipt.signatures.ed25519),
        signature_ml_dsa=to_text(receipt.signatures.ml_dsa),
    )


def parse_receipt(document: ReceiptDocument) -> Receipt:
    """The receipt of a document; its signatures are for `check_receipt`."""
    if document.status not in _STATUSES:
        raise Malformed(f"{document.status[:20]!r} is no status of a receipt", hint=", ".join(_STATUSES))
    receipt = Receipt(
        status=_STATUSES[document.status],
        replay_key=document.replay_key,
        message_id=document.message_id,
        sender_nhi=document.sender_nhi,
        recipient_nhi=document.recipient_nhi,
        time_ms=document.time_ms,
        signer_id=document.signer_id,
        reason=document.reason,
        signatures=Signatures(from_text(document.signature_ed25519), from_text(document.signature_ml_dsa)),
    )
    receipt.signed_bytes()
    return receipt


def encode_receipt(receipt: Receipt) -> bytes:
    """What is signed, and the two signatures after it."""
    return receipt.signed_bytes() + receipt.signatures.ed25519 + receipt.signatures.ml_dsa


def decode_receipt(content: bytes) -> Receipt:
    """The receipt that `encode_receipt` wrote."""
    signed, signatures = content[:-_SIGNATURES], content[-_SIGNATURES:]
    _, status = struct.unpack_from(">BB", signed)
    at = 2 + 32 + 16
    sender, at = _counted(signed, at)
    recipient, at = _counted(signed, at)
    (time_ms,) = struct.unpack_from(">Q", signed, at)
    signer_id = UUID(bytes=signed[at + 8 : at + 24])
    reason, at = _counted(signed, at + 24)
    return Receipt(
        status=ReceiptStatus(status),
        replay_key=signed[2:34].hex(),
        message_id=UUID(bytes=signed[34:50]),
        sender_nhi=sender.decode("ascii"),
        recipient_nhi=recipient.decode("ascii"),
        time_ms=time_ms,
        signer_id=signer_id,
        reason=reason.decode(),
        signatures=Signatures(signatures[:ED25519_SIGNATURE], signatures[ED25519_SIGNATURE:]),
    )


def _counted(content: bytes, at: int) -> tuple[bytes, int]:
    end = at + 2 + int.from_bytes(content[at : at + 2], "big")
    return content[at + 2 : end], end
