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


class NotMember(Denied, code="not_member"):
    """The key is not in the group's roster"""


class SenderMismatch(Denied, code="sender_mismatch"):
    """A member appends its own messages only"""


class NoGroup(NotFound, code="no_group"):
    """This node has no such group"""


class NoMessage(NotFound, code="no_message"):
    """This node does not hold that message"""


class GroupDropped(AngeliaError, code="group_dropped"):
    """The group was dropped, and its id is not used again"""


class MessageConflict(Conflict, code="conflict"):
    """Other bytes are stored under this message id"""


class ShardConflict(Conflict, code="shard_conflict"):
    """Another shard is stored under this message id"""


class EpochConflict(Conflict, code="epoch_conflict"):
    """The epoch is not the present one"""


class SenderTaken(Conflict, code="sender_taken"):
    """The sender id is one of the group's present or past members"""


class NotDurable(AngeliaError, code="not_durable"):
    """Not enough nodes have confirmed the snapshot, so nothing is deleted"""


class BadLevel(Unprocessable, code="bad_level"):
    """The level is not one that this message may have"""


class BadShard(Unprocessable, code="bad_shard"):
    """The shard does not fit its manifest"""


class BadEncoding(Unprocessable, code="bad_encoding"):
    """The shards of a snapshot give another object than the one that was signed"""


class BadManifest(Unprocessable, code="bad_manifest"):
    """The manifest is not one that a member signed for this message"""


class AbsurdWatermark(Unprocessable, code="absurd_watermark"):
    """The watermark is far above what this node knows"""


class ReadOnly(Unavailable, code="read_only"):
    """The node cannot write its log"""


class Starting(Unavailable, code="starting"):
    """The node is starting"""


class Lagged(AngeliaError, code="lagged"):
    """The subscriber reads too slowly; it connects again with its vector"""


class Quota(AngeliaError, code="quota"):
    """The group's quota on this node is used up"""


class DamagedRecord(AngeliaError, code="corrupt_record"):
    """A stored record is damaged"""


class SettingsError(AngeliaError, code="bad_setting"):
    """A setting has a value that does not work"""


class StartFailed(AngeliaError, code="start_failed"):
    """The server cannot start"""


class AuditBroken(AngeliaError, code="audit_broken"):
    """The audit chain does not verify"""
