"""The caller of a spool node: a key, and the member of the group that it belongs to."""

from __future__ import annotations

from angelia.api import Caller
from angelia.grouplog.live_group import LiveGroup
from angelia.grouplog.model.groups import GroupMember


class MemberCaller(Caller, frozen=True, kw_only=True):
    """A caller whose signature holds. Group and member are None where a group is created."""

    public_key: bytes
    group: LiveGroup | None = None
    member: GroupMember | None = None

    @property
    def known_as(self) -> str:
        """Four digits of the sender id: a log does not say which member it was, only tells callers apart."""
        return f"member {self.member.sender.hex()[:4]}" if self.member is not None else "admin of a new group"

    @property
    def counted_as(self) -> str:
        return self.public_key.hex()
