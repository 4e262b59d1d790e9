"""A channel's roster: its publishers and subscribers, signed by its owner, so that no server can add a member."""

from __future__ import annotations

import hashlib
import itertools
import re
import struct
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Annotated
from uuid import UUID

import msgspec

from angelia.envelope.ids import MAX_HANDLE, valid_handle
from angelia.envelope.json_form import document_members, from_text, object_members, to_text
from angelia.envelope.refusals import Malformed, SignatureFailed
from angelia.envelope.sealing import Edition
from angelia.envelope.signing import Purpose, Signatures, SigningPair, VerifyingPair, object_holds, split_signatures
from angelia.envelope.wire import LATEST, counted, read_counted
from angelia.errors import AngeliaError

FIRST_PREVIOUS = bytes(32)
MOST_MEMBERS = 10_000
# In the order of their numbers in the signed bytes, from 1 on.
POLICIES = ("open", "private", "authz_required", "allowlist")
_PRIVATE, _ALLOWLIST = "private", "allowlist"
_STRICTNESS = ("open", "authz_required", "allowlist", "private")
_NAME = re.compile(r"\A[a-z0-9][a-z0-9_./-]{0,63}\Z")
_FIXED = struct.Struct(">BQQQ16s32sH")  # policy, version, keys_since, issued_at, signer_id, prev, how many members
_PUBLISH, _SUBSCRIBE = 1, 2


class UntrustedRoster(AngeliaError, code="untrusted_roster"):
    """A channel's roster is not what its owner signed last"""


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """An agent on a roster, and its rights."""

    nhi: str
    may_publish: bool
    may_subscribe: bool

    def exceeds(self, other: Member | None) -> bool:
        """Whether it has a right that the other entry lacks."""
        if other is None:
            return self.may_publish or self.may_subscribe
        return self.may_publish > other.may_publish or self.may_subscribe > other.may_subscribe


_by_name = attrgetter("nhi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The members of a channel in the order of their names, without the owner, which has all rights.

    Keys that were made under versions before `keys_since` seal nothing: an agent that lost a right since, or a thief,
    may have them. `issued_at` is the owner's clock in Unix milliseconds. Under `open` and `authz_required` the members
    decide nothing: there the server admits readers."""

    channel_id: UUID
    owner_nhi: str
    channel_name: str
    policy: str
    version: int
    keys_since: int
    issued_at: int
    signer_id: UUID
    prev_roster_hash: bytes
    members: tuple[Member, ...]
    signatures: Signatures = field(default=Signatures(b"", b""), repr=False)

    @property
    def name(self) -> str:
        return f"{self.owner_nhi}/{self.channel_name}"

    @property
    def edition(self) -> Edition:
        return Edition(self.signer_id, self.version)

    @property
    def decides(self) -> bool:
        """Whether only its members may publish and read."""
        return self.policy in (_PRIVATE, _ALLOWLIST)

    def signed_bytes(self) -> bytes:
        _check(self)
        return b"".join(
            [
                b"\x01",
                self.channel_id.bytes,
                counted(self.owner_nhi.encode("ascii")),
                counted(self.channel_name.encode("ascii")),
                _FIXED.pack(
                    POLICIES.index(self.policy) + 1,
                    self.version,
                    self.keys_since,
                    self.issued_at,
                    self.signer_id.bytes,
                    self.prev_roster_hash,
                    len(self.members),
                ),
                *(counted(one.nhi.encode("ascii")) + bytes([_rights(one)]) for one in self.members),
            ]
        )

    @property
    def hash(self) -> bytes:
        """The hash that the next roster names as its predecessor."""
        return hashlib.sha256(encode_roster(self)).digest()

    def member(self, nhi: str) -> Member | None:
        at = bisect_left(self.members, nhi, key=_by_name)
        found = self.members[at] if at < len(self.members) else None
        return found if found is not None and found.nhi == nhi else None

    def lets_publish(self, nhi: str) -> bool:
        """Whether posts and keys of an agent are accepted, as far as the roster decides."""
        return self._rights_of(nhi).may_publish

    def lets_hold_key(self, nhi: str) -> bool:
        """Whether the channel's keys may be sent to an agent, as far as the roster decides: publishers and subscribers
        need them."""
        rights = self._rights_of(nhi)
        return rights.may_publish or rights.may_subscribe

    def _rights_of(self, nhi: str) -> Member:
        if not self.decides or nhi == self.owner_nhi:
            return Member(nhi, may_publish=True, may_subscribe=True)
        listed = self.member(nhi) if self.policy == _ALLOWLIST else None
        return listed or Member(nhi, may_publish=False, may_subscribe=False)

    def without_rights_lost_in(self, other: Roster) -> Roster:
        """Returns this roster, unsigned, with only the rights that the other one gives too, and the stricter policy."""
        strictest = max(self.policy, other.policy, key=_STRICTNESS.index)
        kept = [(one, other.member(one.nhi)) for one in self.members]
        members = tuple(
            Member(one.nhi, one.may_publish and left.may_publish, one.may_subscribe and left.may_subscribe)
            for one, left in kept
            if left is not None
        )
        return replace(self, policy=strictest, members=members)

    def is_narrowed_by(self, policy: str, members: Iterable[Member]) -> bool:
        """Whether the next roster takes a right from a member of this one, or changes the policy."""
        if policy != self.policy:
            return True
        following = {one.nhi: one for one in members}
        return policy == _ALLOWLIST and any(one.exceeds(following.get(one.nhi)) for one in self.members)


def sign_roster(
    pair: SigningPair,
    *,
    channel_id: UUID,
    owner_nhi: str,
    channel_name: str,
    policy: str,
    members: Iterable[Member],
    issued_at: int,
    version: int = 1,
    keys_since: int | None = None,
    prev_roster_hash: bytes = FIRST_PREVIOUS,
) -> Roster:
    """Returns the roster, signed by its owner. Without `keys_since` no earlier key seals any more."""
    unsigned = Roster(
        channel_id=channel_id,
        owner_nhi=owner_nhi,
        channel_name=channel_name,
        policy=policy,
        version=version,
        keys_since=version if keys_since is None else keys_since,
        issued_at=issued_at,
        signer_id=pair.public.signer_id,
        prev_roster_hash=prev_roster_hash,
        members=tuple(sorted(one for one in members if one.nhi != owner_nhi)),
    )
    return replace(unsigned, signatures=pair.sign_object(Purpose.ROSTER, unsigned.signed_bytes()))


def check_roster(roster: Roster, owner: VerifyingPair) -> None:
    """Raises unless a roster is well formed and signed by this pair of its owner."""
    content = roster.signed_bytes()
    if roster.signer_id != owner.signer_id or not object_holds(owner, Purpose.ROSTER, content, roster.signatures):
        raise SignatureFailed("the signatures of the channel's roster do not hold")


def check_same_channel(roster: Roster, pinned: Roster) -> None:
    """Raises unless two rosters are of the same channel: its id, its owner and its name stay together for ever."""
    if (roster.channel_id, roster.name) != (pinned.channel_id, pinned.name):
        raise UntrustedRoster(
            f"the roster is that of {roster.name}, not of {pinned.name}",
            hint=f"if it never was {pinned.name}: angelia channel forget {pinned.channel_id}",
        )


def check_follows(roster: Roster, pinned: Roster) -> None:
    """Raises unless a roster may replace the pinned one: neither its version nor its date goes back, one version is one
    roster, and the next version names the hash of the one before."""
    check_same_channel(roster, pinned)
    backdated = roster.version > pinned.version and roster.issued_at < pinned.issued_at
    twice = roster.version == pinned.version and roster.hash != pinned.hash
    unchained = roster.version == pinned.version + 1 and roster.prev_roster_hash != pinned.hash
    hint = f"ask {pinned.owner_nhi}: its keys may be in other hands too"
    if backdated:
        fault = "is dated before"
    elif roster.version < pinned.version:
        fault = "is older than"
        hint = "somebody serves an old roster; was the server put back from an old copy?"
    elif twice or unchained:
        fault = "does not follow from"
    else:
        return
    raise UntrustedRoster(
        f"version {roster.version} of the roster of {pinned.name} {fault} version {pinned.version}, "
        "which was seen before",
        hint=hint,
    )


class MemberDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    nhi: str
    may_publish: bool
    may_subscribe: bool


class RosterDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The JSON form of a roster. Bytes are base64url without padding, the time Unix milliseconds."""

    channel_id: UUID
    owner_nhi: str
    channel_name: str
    policy: str
    version: int
    keys_since: int
    issued_at: int
    signer_id: UUID
    prev_roster_hash: str
    members: Annotated[list[MemberDocument], msgspec.Meta(max_length=MOST_MEMBERS)]
    signature_ed25519: str
    signature_ml_dsa: str


def roster_document(roster: Roster) -> RosterDocument:
    members = msgspec.convert(roster.members, list[MemberDocument], from_attributes=True)
    spelled = {"prev_roster_hash": to_text(roster.prev_roster_hash), "members": members}
    return RosterDocument(**document_members(roster) | spelled)


def parse_roster(document: RosterDocument) -> Roster:
    """Returns the roster of a document, well formed; `check_roster` verifies its signatures."""
    members = tuple(Member(one.nhi, one.may_publish, one.may_subscribe) for one in document.members)
    parsed = {"prev_roster_hash": from_text(document.prev_roster_hash), "members": members}
    roster = Roster(**object_members(document) | parsed)
    _check(roster)
    return roster


def encode_roster(roster: Roster) -> bytes:
    """Returns the signed bytes, followed by the two signatures."""
    return roster.signed_bytes() + roster.signatures.raw


def decode_roster(content: bytes) -> Roster:
    """Returns the roster that `encode_roster` wrote; other bytes are Malformed."""
    signed, signatures = split_signatures(content)
    try:
        owner, at = read_counted(signed, 17)
        name, at = read_counted(signed, at)
        policy, version, keys_since, issued_at, signer_id, prev, count = _FIXED.unpack_from(signed, at)
        at += _FIXED.size
        members = []
        for _ in range(count):
            nhi, at = read_counted(signed, at)
            rights = signed[at]
            members.append(Member(nhi.decode("ascii"), bool(rights & _PUBLISH), bool(rights & _SUBSCRIBE)))
            at += 1
        roster = Roster(
            channel_id=UUID(bytes=signed[1:17]),
            owner_nhi=owner.decode("ascii"),
            channel_name=name.decode("ascii"),
            policy=POLICIES[policy - 1] if policy else "",
            version=version,
            keys_since=keys_since,
            issued_at=issued_at,
            signer_id=UUID(bytes=signer_id),
            prev_roster_hash=prev,
            members=tuple(members),
            signatures=signatures,
        )
    except (ValueError, IndexError, struct.error) as error:
        raise Malformed("these bytes are no roster") from error
    if encode_roster(roster) != content:
        raise Malformed("these bytes are no roster")
    return roster


def valid_channel_name(text: str) -> bool:
    return _NAME.match(text) is not None


def _check(roster: Roster) -> None:
    if not valid_handle(roster.owner_nhi) or not valid_channel_name(roster.channel_name):
        raise Malformed("a roster names a channel and its owner")
    if roster.policy not in POLICIES:
        raise Malformed(f"{roster.policy[:20]!r} is no policy of a channel", hint=", ".join(POLICIES))
    if not 1 <= roster.version < LATEST or not 0 < roster.issued_at < LATEST:
        raise Malformed("the version or the time of a roster is out of range")
    if not 1 <= roster.keys_since <= roster.version:
        raise Malformed("a roster names one of the versions up to its own as the first whose keys still seal")
    if len(roster.prev_roster_hash) != 32 or (roster.version == 1) != (roster.prev_roster_hash == FIRST_PREVIOUS):
        raise Malformed("the first roster follows none, and every other one names the one before")
    names = [one.nhi for one in roster.members]
    if len(names) > MOST_MEMBERS:
        raise Malformed(f"a roster has at most {MOST_MEMBERS:,} members, and this one {len(names):,}")
    if any(len(one) > MAX_HANDLE or not valid_handle(one) for one in names) or roster.owner_nhi in names:
        raise Malformed("a roster lists handles, and not its owner, who may everything")
    if any(one >= other for one, other in itertools.pairwise(names)):
        raise Malformed("a roster lists every member once, by name")


def _rights(member: Member) -> int:
    return _PUBLISH * member.may_publish | _SUBSCRIBE * member.may_subscribe
