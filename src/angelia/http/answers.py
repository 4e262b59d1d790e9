"""Bodies and statuses of answers. Errors are problem documents on /v1, and `{"error": text}` elsewhere."""

from __future__ import annotations

import msgspec

from angelia.api import Answer, Surface
from angelia.errors import AngeliaError

# The HTTP status of each error code; the only place that knows it.
STATUS = {
    "invalid_argument": 400,
    "invalid_key_format": 400,
    "signature_verification_failed": 400,
    "suite_refused": 400,
    "clock_skew": 400,
    "unauthenticated": 401,
    "stale": 401,
    "from_future": 401,
    "replay_rejected": 401,
    "authorization_denied": 403,
    "not_member": 403,
    "sender_mismatch": 403,
    "not_found": 404,
    "key_not_found": 404,
    "no_group": 404,
    "no_message": 404,
    "method_not_allowed": 405,
    "already_exists": 409,
    "conflict": 409,
    "key_stale": 409,
    "message_id_conflict": 409,
    "lease_lost": 409,
    "epoch_stale": 409,
    "version_conflict": 409,
    "shard_conflict": 409,
    "epoch_conflict": 409,
    "sender_taken": 409,
    "key_revoked": 410,
    "message_expired": 410,
    "offset_gone": 410,
    "receipt_archived": 410,
    "group_dropped": 410,
    "not_durable": 412,
    "too_large": 413,
    "unsupported_media_type": 415,
    "unprocessable": 422,
    "bad_level": 422,
    "bad_shard": 422,
    "bad_manifest": 422,
    "bad_encoding": 422,
    "absurd_watermark": 422,
    "rate_limited": 429,
    "queue_full": 429,
    "internal": 500,
    "corrupt_record": 500,
    "unavailable": 503,
    "read_only": 503,
    "starting": 503,
    "lagged": 503,
    "encryption_unavailable": 503,
    "deadline_exceeded": 504,
    "disk_full": 507,
    "quota": 507,
}


# Statuses that old clients do not know, and what they get instead.
_FOR_OLD_CLIENTS = {507: 503}


class ProblemDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A problem document (RFC 9457) with our members code, hint, request_id and retry_after."""

    title: str
    status: int
    code: str
    request_id: str
    type: str = "about:blank"
    hint: str = ""
    retry_after: int | None = None


class ErrorText(msgspec.Struct, frozen=True):
    """The error of the routes for old clients."""

    error: str


_encoder = msgspec.json.Encoder()


def of_error(error: AngeliaError, surface: Surface, request_id: str) -> Answer:
    """Returns the answer to an error, in the form of its surface."""
    status = STATUS.get(error.code, 500)
    headers = dict(error.headers)
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    if status == 401:
        headers["www-authenticate"] = 'Signature realm="angelia", Bearer realm="angelia"'
    if surface is Surface.V1:
        body = ProblemDocument(
            error.message, status, error.code, request_id, hint=error.hint, retry_after=error.retry_after
        )
        document = msgspec.to_builtins(body) | error.members if error.members else body
        return Answer(status, document, headers, "application/problem+json")
    return Answer(_FOR_OLD_CLIENTS.get(status, status), ErrorText(error.message), headers)


def encoded(answer: Answer, surface: Surface) -> bytes:
    """Returns the bytes of a body. On the root surface JSON ends with a newline, except that of a 429, as in AICQ."""
    if answer.body is None:
        return b""
    if isinstance(answer.body, bytes):
        return answer.body
    body = _encoder.encode(answer.body)
    return body + b"\n" if surface is Surface.ROOT and answer.status != 429 else body
