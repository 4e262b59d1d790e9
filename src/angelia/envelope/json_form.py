"""The JSON form of an envelope: the same fields by name, bytes in base64url.

Strict, so that one envelope has one wire form. Hashes are never taken over JSON text but over the wire form.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import re
import struct
from typing import Any, NoReturn, TypeVar
from uuid import UUID

import msgspec

from angelia.envelope import merkle_batch, wire
from angelia.envelope.merkle_batch import MerkleProof
from angelia.envelope.refusals import Malformed, SuiteRefused
from angelia.envelope.signing import ED25519_SIGNATURE, Signatures
from angelia.envelope.wire import TAG, TTL_CEILING, VERSION, Compression, Envelope, Header, Priority, Suite

MAX_JSON = 1_677_721  # 1.6 MiB: the largest envelope in base64, with room for its names
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ALWAYS = frozenset(
    [
        "version",
        "suite",
        "message_id",
        "created_at",
        "expires_at",
        "ttl_seconds",
        "priority",
        "compression",
        "key_id",
        "sender_key_id",
        "sender_nhi",
        "recipient_nhi",
        "nonce",
        "wrapped_key",
        "encrypted_payload",
        "auth_tag",
        "signature_ed25519",
        "signature_ml_dsa",
    ]
)
_SOMETIMES = frozenset(("channel_id", "correlation_id", "batch", "control", "session"))

Fields = dict[str, Any]
_Value = TypeVar("_Value")


def to_fields(envelope: Envelope) -> Fields:
    """Returns the members of the JSON object; absent fields are left out, never null."""
    header = envelope.header
    fields: Fields = {
        "version": VERSION,
        "suite": int(header.suite),
        "message_id": str(header.message_id),
        "created_at": header.created_at,
        "expires_at": header.expires_at,
        "ttl_seconds": header.ttl_seconds,
        "priority": int(header.priority),
        "compression": int(header.compression),
        "key_id": str(header.key_id),
        "sender_key_id": str(header.sender_key_id),
        "sender_nhi": header.sender_nhi,
        "recipient_nhi": header.recipient_nhi,
    }
    if header.channel_id:
        fields["channel_id"] = str(header.channel_id)
    if header.correlation_id:
        fields["correlation_id"] = str(header.correlation_id)
    if header.control:
        fields["control"] = True
    fields |= {
        "nonce": to_text(header.nonce),
        "wrapped_key": to_text(header.wrapped_key),
        "encrypted_payload": to_text(envelope.ciphertext),
        "auth_tag": to_text(envelope.tag),
        "signature_ed25519": to_text(envelope.signatures.ed25519),
        "signature_ml_dsa": to_text(envelope.signatures.ml_dsa),
    }
    if proof := envelope.proof:
        fields["batch"] = {"index": proof.index, "count": proof.count, "path": [to_text(one) for one in proof.path]}
    return fields


def encode(envelope: Envelope) -> bytes:
    return json.dumps(to_fields(envelope), separators=(",", ":")).encode("ascii")


def decode(content: bytes, ttl_max: int = TTL_CEILING) -> Envelope:
    """Parses JSON text to an envelope: exactly the known members, each in its one spelling."""
    if len(content) > MAX_JSON:
        raise Malformed(f"an envelope in JSON has at most {MAX_JSON:,} bytes")
    return from_fields(strict_object(content), ttl_max)


def from_fields(fields: Fields, ttl_max: int = TTL_CEILING) -> Envelope:
    """Returns the envelope of the members that `strict_object` parsed."""
    given = fields.keys()
    if missing := _ALWAYS - given:
        raise Malformed(f"{min(missing)} is missing")
    if unknown := given - _ALWAYS - _SOMETIMES:
        raise Malformed(f"{min(unknown)[:40]!r} is not a member of an envelope")
    if _integer(fields, "version") != VERSION:
        raise Malformed("the version of the envelope is not known here", hint="update Angelia")
    if "session" in fields or fields["suite"] == Suite.SESSION:
        raise SuiteRefused("sessions (suite 3) are not served by this version")
    if "control" in fields and fields["control"] is not True:
        raise Malformed("control is true or left out")
    try:
        header = Header(
            suite=Suite(_integer(fields, "suite")),
            message_id=_uuid(fields, "message_id"),
            created_at=_integer(fields, "created_at"),
            ttl_seconds=_integer(fields, "ttl_seconds"),
            priority=Priority(_integer(fields, "priority")),
            compression=Compression(_integer(fields, "compression")),
            key_id=_uuid(fields, "key_id"),
            sender_key_id=_uuid(fields, "sender_key_id"),
            sender_nhi=_text(fields, "sender_nhi"),
            recipient_nhi=_text(fields, "recipient_nhi"),
            channel_id=_uuid(fields, "channel_id") if "channel_id" in fields else None,
            correlation_id=_uuid(fields, "correlation_id") if "correlation_id" in fields else None,
            control="control" in fields,
            batched="batch" in fields,
            nonce=from_text(fields["nonce"]),
            wrapped_key=from_text(fields["wrapped_key"]),
        )
    except ValueError as error:
        raise Malformed("suite, priority or compression has a value that is not known here") from error
    if _integer(fields, "expires_at") != header.expires_at:
        raise Malformed("expires_at is not created_at and ttl_seconds")
    proof = _proof(fields["batch"]) if "batch" in fields else None
    signatures = Signatures(from_text(fields["signature_ed25519"]), from_text(fields["signature_ml_dsa"]))
    ciphertext, tag = from_text(fields["encrypted_payload"]), from_text(fields["auth_tag"])
    # These two have no length on the wire: with bytes moved from one to its neighbour, the wire would be the same.
    if len(tag) != TAG or len(signatures.ed25519) != ED25519_SIGNATURE:
        raise Malformed("auth_tag or signature_ed25519 has the wrong length")
    try:
        head = wire.encode_head(header, ttl_max)
        assembled = wire.assemble(header, head, ciphertext, tag, signatures, proof)
    except (OverflowError, struct.error) as error:
        raise Malformed("a value in the envelope is out of range") from error
    # One set of rules: the result must be a valid wire form.
    return wire.decode(assembled.wire, ttl_max)


def strict_object(content: bytes) -> Fields:
    """Parses a JSON object that has only one reading: no duplicate member, no fractions, no negative numbers."""
    try:
        parsed = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_int=_natural,
            parse_float=_refuse_number,
            parse_constant=_refuse_number,
        )
    except (ValueError, RecursionError) as error:
        raise Malformed("this is not the JSON of an envelope") from error
    if not isinstance(parsed, dict):
        raise Malformed("an envelope in JSON is an object")
    return parsed


def to_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def from_text(text: object) -> bytes:
    """Decodes base64url without padding, and refuses any other spelling of the same bytes."""
    if not isinstance(text, str):
        raise Malformed("bytes are written as base64url text")
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError) as error:
        raise Malformed("bytes are written in base64url without padding") from error
    if to_text(raw) != text:
        raise Malformed("bytes are written in base64url without padding")
    return raw


def document_members(signed: Any) -> Fields:
    """Returns the members of a signed object's JSON form: its fields by their names, and its signatures as text."""
    members = {one.name: getattr(signed, one.name) for one in dataclasses.fields(signed)}
    signatures: Signatures = members.pop("signatures")
    return members | {
        "signature_ed25519": to_text(signatures.ed25519),
        "signature_ml_dsa": to_text(signatures.ml_dsa),
    }


def object_members(document: msgspec.Struct) -> Fields:
    """Returns the fields of a signed object, by name, from its JSON form: the reverse of `document_members`."""
    members = msgspec.structs.asdict(document)
    signatures = [from_text(members.pop(name)) for name in ("signature_ed25519", "signature_ml_dsa")]
    return members | {"signatures": Signatures(*signatures)}


def _proof(given: object) -> MerkleProof:
    if not isinstance(given, dict) or given.keys() != {"index", "count", "path"} or not isinstance(given["path"], list):
        raise Malformed("batch has the members index, count and path")
    if len(given["path"]) > merkle_batch.MOST_LEAVES.bit_length():
        raise Malformed("the path of a batch is too long")
    path = tuple(from_text(one) for one in given["path"])
    if any(len(one) != 32 for one in path):
        raise Malformed("the path of a batch is made of 32-byte hashes")
    return MerkleProof(_integer(given, "index"), _integer(given, "count"), path)


def _integer(fields: Fields, name: str) -> int:
    return _of_type(fields, name, int, "a whole number")


def _text(fields: Fields, name: str) -> str:
    return _of_type(fields, name, str, "a text")


def _uuid(fields: Fields, name: str) -> UUID:
    text = _text(fields, name)
    if _UUID.fullmatch(text) is None:
        raise Malformed(f"{name} is not a UUID in lower case")
    return UUID(text)


def _of_type(fields: Fields, name: str, kind: type[_Value], called: str) -> _Value:
    value: _Value = fields[name]
    if type(value) is not kind:  # a bool is an int to isinstance
        raise Malformed(f"{name} is not {called}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> Fields:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a member stands twice")
    return fields


def _natural(text: str) -> int:
    if text.startswith("-") or len(text) > 20:
        raise ValueError("a number is out of range")
    return int(text)


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:20]} is not a whole number")
