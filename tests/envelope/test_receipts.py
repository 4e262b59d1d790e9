"""Receipts: a recipient's signed word, in the bytes of the contract, that a relay cannot invent or change."""

from __future__ import annotations

import struct
from dataclasses import replace
from uuid import UUID

import pytest

from angelia.envelope.receipts import MOST_REASON, Receipt, ReceiptStatus, check_receipt, sign_receipt
from angelia.envelope.refusals import Malformed, SignatureFailed
from angelia.envelope.signing import Purpose, Signatures, object_holds
from envelope.samples import ALICE, CORRELATION, MALLORY, NOW, RECIPIENT, SENDER

REPLAY_KEY = bytes(range(32)).hex()


def made(**other: object) -> Receipt:
    values: dict[str, object] = {
        "status": ReceiptStatus.DELIVERED,
        "replay_key": REPLAY_KEY,
        "message_id": CORRELATION,
        "sender_nhi": SENDER,
        "recipient_nhi": RECIPIENT,
        "time_ms": NOW,
        "signer_id": ALICE.public.signer_id,
        **other,
    }
    return Receipt(**values)  # type: ignore[arg-type]


SIGNED = sign_receipt(made(reason="né"), ALICE)


def counted(content: bytes) -> bytes:
    return struct.pack(">H", len(content)) + content


@pytest.mark.parametrize(("status", "number"), [("DELIVERED", 1), ("READ", 2), ("FAILED", 3)])
def test_the_signed_bytes_are_those_of_the_contract(status: str, number: int) -> None:
    receipt = sign_receipt(made(status=ReceiptStatus[status], reason="né"), ALICE)
    expected = struct.pack(">BB", 1, number) + bytes(range(32)) + CORRELATION.bytes
    expected += counted(b"agent-alice-01") + counted(b"agent-bob-02")
    expected += struct.pack(">Q", NOW) + ALICE.public.signer_id.bytes + counted("né".encode())
    assert receipt.signed_bytes() == expected
    assert object_holds(ALICE.public, Purpose.RECEIPT, expected, receipt.signatures)


def test_a_receipt_names_the_pair_that_signs_it() -> None:
    assert sign_receipt(made(signer_id=UUID(int=0)), ALICE).signer_id == ALICE.public.signer_id


@pytest.mark.parametrize(
    "changed",
    [
        replace(SIGNED, status=ReceiptStatus.FAILED),
        replace(SIGNED, replay_key="00" * 32),
        replace(SIGNED, message_id=UUID(int=5)),
        replace(SIGNED, sender_nhi="agent-carol"),
        replace(SIGNED, recipient_nhi="agent-carol"),
        replace(SIGNED, time_ms=NOW + 1),
        replace(SIGNED, signer_id=MALLORY.public.signer_id),
        replace(SIGNED, reason=""),
        replace(SIGNED, sender_nhi=SENDER[:-1], recipient_nhi=SENDER[-1] + RECIPIENT),  # only the border is moved
        replace(SIGNED, signatures=Signatures(SIGNED.signatures.ed25519, b"")),
        replace(SIGNED, signatures=Signatures(b"", SIGNED.signatures.ml_dsa)),
        sign_receipt(made(), MALLORY),
    ],
)
def test_no_field_can_be_changed_and_nobody_else_can_sign(changed: Receipt) -> None:
    check_receipt(SIGNED, ALICE.public)
    with pytest.raises(SignatureFailed):
        check_receipt(changed, ALICE.public)


@pytest.mark.parametrize(
    "wrong",
    [
        {"reason": "x" * (MOST_REASON + 1)},
        {"reason": "é" * (MOST_REASON // 2) + "x"},
        {"sender_nhi": "Alice"},
        {"recipient_nhi": ""},
        {"recipient_nhi": "bob\n"},
        {"replay_key": REPLAY_KEY.upper()},
        {"replay_key": REPLAY_KEY[:-2]},
        {"replay_key": REPLAY_KEY + "00"},
        {"replay_key": " " + REPLAY_KEY},
        {"replay_key": "zz" * 32},
        {"replay_key": ""},
        {"time_ms": -1},
        {"time_ms": 1 << 64},
        {"reason": "\ud800"},
    ],
    ids=repr,
)
def test_a_receipt_that_cannot_be_written_is_malformed_and_nothing_worse(wrong: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        sign_receipt(made(**wrong), ALICE)


def test_the_longest_reason_fits() -> None:
    check_receipt(sign_receipt(made(reason="é" * (MOST_REASON // 2)), ALICE), ALICE.public)
