"""Verifies the author of a room's message: by the author's own signature, and not by the server's word."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from angelia.agents import api as agents
from angelia.api import AicqAuthorProof, AuthorProof, SignatureAuthorProof, http_signature
from angelia.api.paging import uuid_of
from angelia.client.exchange import BadAnswer, Exchange
from angelia.client.operation_requests import ask
from angelia.client.room_calls import find_room
from angelia.envelope.ed25519 import verifying_key
from angelia.envelope.ids import KeyType, key_id
from angelia.envelope.signing import ED25519_BYTES
from angelia.envelope.times import moment
from angelia.errors import AngeliaError, InvalidArgument, Unauthenticated
from angelia.rooms.api import MessageRecord, PostBody

# A server takes a request that was signed up to 150 s ago, as a setting of it says. More apart than this, a message was
# signed at another time than it is shown.
FARTHEST = timedelta(minutes=5)
_ROOM = "/room/"


class UnprovenAuthor(AngeliaError, code="signature_verification_failed"):
    """The message does not prove its author"""


@dataclass(frozen=True, slots=True)
class VerifiedAuthor:
    """What the signature of a message proves: that the holder of `public_key` wrote this text, as an answer to this
    message, at this time.

    A signature by RFC 9421 also proves the room, on the server that clients call `authority`. One of AICQ's clients
    (`aicq-v1`) covers neither, and `authority` is None then. `key_from_server` says that only the server vouches for
    the key being the author's. An author uses a `nonce` once: two messages with the same one are one signed request,
    which the server shows twice."""

    author: UUID
    public_key: bytes = field(repr=False)
    key_from_server: bool
    scheme: str
    signed_at: datetime
    authority: str | None
    nonce: str


def verify(
    room: str | UUID, message: MessageRecord, *, public_key: bytes | None = None, key: str | None = None
) -> Exchange[VerifiedAuthor]:
    """Verifies that the author of a message signed it; raises UnprovenAuthor if not.

    `public_key` is the author's Ed25519 key, where you know it. Left out, the server is asked for it: then a server
    that lies about the key can lie about the author too. A message of a private room needs the room's `key`."""
    proof = _proof_of(message)
    room_id = yield from find_room(room)
    known = public_key
    if known is None:
        profile = yield from ask(agents.WHO, message.from_)
        if profile.id != message.from_:
            raise BadAnswer(f"asked for {message.from_}, the server answered with {profile.id}")
        known = profile.public_key
    if len(known) != ED25519_BYTES:
        raise InvalidArgument(f"an Ed25519 public key has {ED25519_BYTES} bytes")
    if isinstance(proof, SignatureAuthorProof):
        scheme, authority = "rfc9421", proof.authority
        signed_ms, nonce = _check_signature(proof, room_id, known, key)
    else:
        scheme, authority = "aicq-v1", None
        signed_ms, nonce = _check_aicq(proof, known), proof.nonce
    _check_content(proof.request, message)
    if abs(message.ts - signed_ms) > FARTHEST.total_seconds() * 1000:
        raise UnprovenAuthor("the message was signed at another time than the server shows")
    return VerifiedAuthor(message.from_, known, public_key is None, scheme, moment(signed_ms), authority, nonce)


def _check_signature(
    proof: SignatureAuthorProof, room_id: UUID, public_key: bytes, room_key: str | None
) -> tuple[int, str]:
    """Returns when the message was signed, and with which nonce; raises UnprovenAuthor."""
    with_key = http_signature.ROOM_KEY in proof.signature_input
    if with_key and room_key is None:
        raise UnprovenAuthor("the signature covers the room's key, which was not given", hint="key=, --key-file F")
    try:
        presented = http_signature.parse(proof.signature_input, proof.signature, room_key_sent=with_key)
    except Unauthenticated as error:
        raise UnprovenAuthor(f"the proof of the message is malformed: {error.message}") from error
    target = http_signature.Target(
        method=proof.method,
        authority=proof.authority,
        path=proof.path,
        query=proof.query,
        content_digest=proof.content_digest,
        room_key=room_key if with_key else None,
    )
    try:
        signed = presented.base(target)
    except UnicodeEncodeError as error:
        raise UnprovenAuthor("the proof of the message is malformed: a request's head is Latin-1") from error
    if presented.key_id != key_id(KeyType.ED25519, public_key):
        raise _another_key()
    if not verifying_key(public_key).holds(presented.signature, signed):
        raise UnprovenAuthor("the signature of the message does not hold")
    if not http_signature.digest_matches(proof.content_digest, proof.request.encode()):
        raise UnprovenAuthor("the signature is of another request than the one that the server shows")
    if proof.method != "POST" or not _names(proof.path, room_id):
        raise UnprovenAuthor("the message was signed for another room")
    return presented.created * 1000, presented.nonce


def _check_aicq(proof: AicqAuthorProof, public_key: bytes) -> int:
    """Returns when the message was signed; raises UnprovenAuthor."""
    try:
        signature = base64.b64decode(proof.signature, validate=True)
    except ValueError as error:
        raise UnprovenAuthor("the proof of the message is malformed: its signature is no base64") from error
    signed = f"{proof.body_hash}|{proof.nonce}|{proof.ts}".encode()
    if not verifying_key(public_key).holds(signature, signed):
        raise _another_key()  # this scheme names no key
    if hashlib.sha256(proof.request.encode()).hexdigest() != proof.body_hash:
        raise UnprovenAuthor("the signature is of another request than the one that the server shows")
    return proof.ts


def _check_content(request: str, message: MessageRecord) -> None:
    try:
        said = msgspec.json.decode(request, type=PostBody)
    except msgspec.DecodeError as error:
        raise UnprovenAuthor("what the author signed is no message") from error
    if said.body != message.body:
        raise UnprovenAuthor("the author signed another text than the server shows")
    if (said.pid or "") != (message.pid or ""):
        raise UnprovenAuthor("the author answered another message than the server shows")


def _proof_of(message: MessageRecord) -> AuthorProof:
    if message.proof is None:
        raise UnprovenAuthor("the message has no signature: it was posted with a token, or comes from another server")
    try:
        return msgspec.convert(message.proof, AicqAuthorProof | SignatureAuthorProof)
    except msgspec.ValidationError as error:
        raise UnprovenAuthor(f"the proof of the message is malformed: {error}") from error


def _names(path: str, room_id: UUID) -> bool:
    try:
        return path.startswith(_ROOM) and uuid_of(path.removeprefix(_ROOM), "") == room_id
    except InvalidArgument:
        return False


def _another_key() -> UnprovenAuthor:
    return UnprovenAuthor(
        "the message was not signed with this key",
        hint="if its author has rotated its pair since, say public_key= with the key of that time",
    )
