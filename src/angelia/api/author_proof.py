"""What proves the author of a request: the signature that the guard verified, kept with what was written."""

from __future__ import annotations

from typing import Any

import msgspec


class AicqAuthorProof(msgspec.Struct, frozen=True, kw_only=True, tag_field="scheme", tag="aicq-v1"):
    """The signature of an old client. It covers the body alone: `body_hash|nonce|ts`."""

    body_hash: str
    nonce: str
    ts: int
    signature: str
    request: str


class SignatureAuthorProof(msgspec.Struct, frozen=True, kw_only=True, tag_field="scheme", tag="rfc9421"):
    """A signature by RFC 9421, with the parts of the request that it covers. `request` is the body, whose digest is in
    `content_digest`."""

    method: str
    authority: str
    path: str
    query: str
    content_digest: str
    signature_input: str
    signature: str
    request: str


AuthorProof = AicqAuthorProof | SignatureAuthorProof


def kept_proof(proof: AuthorProof | None, body: str) -> dict[str, Any] | None:
    """What is kept to prove the author of a message: nothing of a request that has far more than the message, so that
    no author stores and shows what is not counted. JSON escapes take three times the bytes of most texts."""
    if proof is None:
        return None
    kept: dict[str, Any] = msgspec.to_builtins(proof)
    return kept if sum(len(str(value).encode()) for value in kept.values()) <= 3 * len(body.encode()) + 2048 else None
