"""The AngeliaError family: a stable code, a sentence, and a hint that names the next step."""

from __future__ import annotations

from typing import ClassVar


class AngeliaError(Exception):
    """Something went wrong inside Angelia"""

    code: ClassVar[str] = "internal"
    _hint = ""

    def __init__(self, message: str = "", *, hint: str = "", retry_after: int | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        self.hint = hint
        self.retry_after = retry_after
        self.headers: dict[str, str] = {}
        self.members: dict[str, object] = {}  # further members of a problem document
        super().__init__(self.message)

    def __init_subclass__(cls, *, code: str = "") -> None:
        """A class that names no code has that of its parent."""
        super().__init_subclass__()
        if code:
            cls.code = code

    @property
    def hint(self) -> str:
        """The next step for the reader. Also a note of the exception, so that a traceback shows it."""
        return self._hint

    @hint.setter
    def hint(self, hint: str) -> None:
        others = [note for note in getattr(self, "__notes__", []) if note != f"hint: {self._hint}"]
        self._hint = hint
        self.__notes__ = [*others, f"hint: {hint}"] if hint else others


class InvalidArgument(AngeliaError, code="invalid_argument"):
    """The request is not well formed"""


class Unauthenticated(AngeliaError, code="unauthenticated"):
    """The caller is not known"""


class Stale(Unauthenticated, code="stale"):
    """The request was signed too long ago, or before the nonce memory began"""


class FromFuture(Unauthenticated, code="from_future"):
    """The request was signed later than this server's clock allows"""


class ReplayRejected(Unauthenticated, code="replay_rejected"):
    """This nonce was used before"""


class Denied(AngeliaError, code="authorization_denied"):
    """The caller may not do this"""


class NotFound(AngeliaError, code="not_found"):
    """There is no such thing"""


class KeyNotFound(AngeliaError, code="key_not_found"):
    """The agent has published no keys"""


class KeyStale(AngeliaError, code="key_stale"):
    """The key is no longer the one to use"""


class KeyRevoked(AngeliaError, code="key_revoked"):
    """The key was revoked"""


class VersionConflict(AngeliaError, code="version_conflict"):
    """Somebody else was faster"""


class ClockSkew(AngeliaError, code="clock_skew"):
    """The time in the request is too far from this server's clock"""


class MessageExpired(AngeliaError, code="message_expired"):
    """The message has expired"""


class MessageIdConflict(AngeliaError, code="message_id_conflict"):
    """The sender used this message id before, for another envelope"""


class LeaseLost(AngeliaError, code="lease_lost"):
    """The message is leased to somebody else by now"""


class QueueFull(AngeliaError, code="queue_full"):
    """The recipient's queue is full"""


class EpochStale(AngeliaError, code="epoch_stale"):
    """The channel has another key by now"""


class OffsetGone(AngeliaError, code="offset_gone"):
    """The channel does not keep that offset any more"""


class ReceiptArchived(AngeliaError, code="receipt_archived"):
    """The receipt is in the archive, where nothing is changed"""


class MethodNotAllowed(AngeliaError, code="method_not_allowed"):
    """This path does not take that method"""


class AmbiguousId(AngeliaError, code="ambiguous_id"):
    """Several ids begin like this"""


class AlreadyExists(AngeliaError, code="already_exists"):
    """It exists already"""


class Conflict(AngeliaError, code="conflict"):
    """The request does not fit the present state"""


class TooLarge(AngeliaError, code="too_large"):
    """The request body is too large"""


class UnsupportedMediaType(AngeliaError, code="unsupported_media_type"):
    """The content type is not one that this path reads"""


class Unprocessable(AngeliaError, code="unprocessable"):
    """The request is well formed, and cannot be carried out"""


class RateLimited(AngeliaError, code="rate_limited"):
    """Too many requests"""


class Unavailable(AngeliaError, code="unavailable"):
    """A store is not reachable at the moment"""


class DiskFull(Unavailable, code="disk_full"):
    """The server's disk is full"""


class DeadlineExceeded(AngeliaError, code="deadline_exceeded"):
    """No answer came in time"""


class SettingsError(AngeliaError, code="bad_setting"):
    """A setting has a value that does not work"""


class StartFailed(AngeliaError, code="start_failed"):
    """The server cannot start"""


class AuditBroken(AngeliaError, code="audit_broken"):
    """The audit chain does not verify"""
