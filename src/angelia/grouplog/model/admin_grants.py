"""Who the admins of a group are, by the signed word of its owner, the member that made the group.

Admins change members and nodes. Only the owner makes and removes admins, and begins a new generation each time. An
edition of a later generation holds against all of earlier ones, so an admin that was removed changes nothing any more,
whatever it signs, and in whatever order members read it. In the same way one under a new key of the owner holds against
all under its old key, which may have been stolen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import msgspec

from angelia.envelope.ed25519 import SIGNATURE_BYTES, verifying_key
from angelia.errors import Conflict
from angelia.grouplog.model.groups import Key
from angelia.grouplog.model.ids import MAX_SEQ

MAX_ADMINS = 64
MAX_KEYS = 64  # of an owner, one after the other
_GRANT_LABEL, _KEY_LABEL = b"angelia/v1/group-admins\0", b"angelia/v1/group-owner-key\0"
SenderId = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
Signature = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
SignWith = Callable[[bytes, bytes], bytes]  # signs, with the private key of a public key, a message


class AdminGrant(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The admins with their keys, the owner first. `keys` are the owner's keys after its first one, each signed with
    the one before; the signature is the last one's."""

    generation: Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQ)]
    admins: Annotated[tuple[tuple[SenderId, Key], ...], msgspec.Meta(min_length=1, max_length=MAX_ADMINS)]
    keys: Annotated[tuple[tuple[Key, Signature], ...], msgspec.Meta(max_length=MAX_KEYS)]
    signature: Signature

    @property
    def owner(self) -> bytes:
        return self.admins[0][0]

    @property
    def order(self) -> tuple[int, int]:
        """Of two grants, the later one in this order holds."""
        return len(self.keys), self.generation

    def is_at_odds(self, other: AdminGrant) -> bool:
        """Whether their owner replaced one key by two: one of them comes from a thief of that key."""
        return any(mine != theirs for (mine, _), (theirs, _) in zip(self.keys, other.keys, strict=False))

    def key_of(self, sender: bytes) -> bytes | None:
        """The key with which an admin signs editions; None for any other member."""
        return dict(self.admins).get(sender)

    def holds(self, group: bytes, first_key: bytes) -> bool:
        """Whether the owner, whose first key that is, signed it."""
        key = first_key
        for following, signature in self.keys:
            if not verifying_key(key).holds(signature, _key_message(group, following)):
                return False
            key = following
        return self.admins[0][1] == key and verifying_key(key).holds(self.signature, _message(group, self))


def granted(
    group: bytes, before: AdminGrant | None, admins: Iterable[tuple[bytes, bytes]], first_key: bytes, sign: SignWith
) -> AdminGrant:
    """The next grant, by the owner, which comes first among the admins."""
    listed = tuple(admins)
    own = listed[0][1]
    keys = () if before is None else before.keys
    last = keys[-1][0] if keys else first_key
    if own != last:
        keys = (*keys, (own, sign(last, _key_message(group, own))))
    if len(keys) > MAX_KEYS or len(listed) > MAX_ADMINS:
        raise Conflict(
            f"a group has at most {MAX_ADMINS} admins, and its owner replaces its key at most {MAX_KEYS} times",
            hint="make another group",
        )
    made = AdminGrant(1 if before is None else before.generation + 1, listed, keys, bytes(SIGNATURE_BYTES))
    return msgspec.structs.replace(made, signature=sign(own, _message(group, made)))


def _message(group: bytes, grant: AdminGrant) -> bytes:
    return _GRANT_LABEL + group + msgspec.msgpack.encode((grant.generation, grant.admins, grant.keys))


def _key_message(group: bytes, key: bytes) -> bytes:
    return _KEY_LABEL + group + key
