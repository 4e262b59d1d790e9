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
        self.members: dict[str, object] = {}  # what a problem document says beyond its words
        super().__init__(self.message)

    @property
    def hint(self) -> str:
        """The next step. It is the exception's note as well, so that a traceback shows it."""
        return self._hint

    @hint.setter
    def hint(self, hint: str) -> None:
        others = [note for note in getattr(self, "__notes__", []) if note != f"hint: {self._hint}"]
        self._hint = hint
        self.__notes__ = [*others, f"hint: {hint}"] if hint else others


class InvalidArgument(AngeliaError):
    """The request is not well formed"""

    code = "invalid_argument"


class Unauthenticated(AngeliaError):
    """The caller is not known"""

    code = "unauthenticated"


class Stale(Unauthenticated):
    """The request was signed too long ago, or before the nonce memory began"""

    code = "stale"


class FromFuture(Unauthenticated):
    """The request was signed later than this server's clock allows"""

    code = "from_future"


class ReplayRejected(Unauthenticated):
    """This nonce was used before"""

    code = "replay_rejected"


class Denied(AngeliaError):
    """The caller may not do this"""

    code = "authorization_denied"


class NotFound(AngeliaError):
    """There is no such thing"""

    code = "not_found"


class KeyNotFound(AngeliaError):
    """The agent has published no keys"""

    code = "key_not_found"


class KeyStale(AngeliaError):
    """The key is no longer the one to use"""

    code = "key_stale"


class KeyRevoked(AngeliaError):
    """The key was revoked"""

    code = "key_revoked"


class VersionConflict(AngeliaError):
    """Somebody else was faster"""

    code = "version_conflict"


class ClockSkew(AngeliaError):
    """The time in the request is too far from this server's clock"""

    code = "clock_skew"


class MessageExpired(AngeliaError):
    """The message has expired"""

    code = "message_expired"


class MessageIdConflict(AngeliaError):
    """The sender used this message id before, for another envelope"""

    code = "message_id_conflict"


class LeaseLost(AngeliaError):
    """The message is leased to somebody else by now"""

    code = "lease_lost"


class QueueFull(AngeliaError):
    """The recipient's queue is full"""

    code = "queue_full"


class EpochStale(AngeliaError):
    """The channel has another key by now"""

    code = "epoch_stale"


class OffsetGone(AngeliaError):
    """The channel does not keep that offset any more"""

    code = "offset_gone"


class ReceiptArchived(AngeliaError):
    """The receipt is in the archive, where nothing is changed"""

    code = "receipt_archived"


class MethodNotAllowed(AngeliaError):
    """This path does not take that method"""

    code = "method_not_allowed"


class AmbiguousId(AngeliaError):
    """Several ids begin like this"""

    code = "ambiguous_id"


class AlreadyExists(AngeliaError):
    """It exists already"""

    code = "already_exists"


class Conflict(AngeliaError):
    """The request does not fit the present state"""

    code = "conflict"


class TooLarge(AngeliaError):
    """The request body is too large"""

    code = "too_large"


class UnsupportedMediaType(AngeliaError):
    """The content type is not one that this path reads"""

    code = "unsupported_media_type"


class RateLimited(AngeliaError):
    """Too many requests"""

    code = "rate_limited"


class Unavailable(AngeliaError):
    """A store is not reachable at the moment"""

    code = "unavailable"


class DiskFull(Unavailable):
    """The server's disk is full"""

    code = "disk_full"


class DeadlineExceeded(AngeliaError):
    """No answer came in time"""

    code = "deadline_exceeded"


class SettingsError(AngeliaError):
    """A setting has a value that does not work"""

    code = "bad_setting"


class StartFailed(AngeliaError):
    """The server cannot start"""

    code = "start_failed"


class AuditBroken(AngeliaError):
    """The audit chain does not verify"""

    code = "audit_broken"
