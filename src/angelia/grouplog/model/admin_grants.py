"""Who the admins of a group are, by the signed word of its owner, the agent that made the group.

Admins change members and nodes. Only the owner makes and removes admins, and begins a new generation each time. An
edition of a later generation holds against all of earlier ones, so an admin that was removed changes nothing any more,
whatever it signs, and in whatever order members read it. Which key is the owner's, each member knows from its bundles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

from angelia.envelope.ed25519 import SIGNATURE_BYTES, verifying_key
from angelia.envelope.ids import valid_handle
from angelia.errors import Conflict
from angelia.grouplog.model.groups import Key
from angelia.grouplog.model.ids import MAX_SEQ

MAX_ADMINS = 64
_LABEL = b"angelia/v1/group-admins\0"
SenderId = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
Signature = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
Sign = Callable[[bytes], bytes]


class Admin(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An admin, with the key by which it signs editions."""

    sender: SenderId
    handle: Annotated[str, msgspec.Meta(max_length=255)]
    public_key: Key


class AdminGrant(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The admins of a group, its owner first, signed with the owner's key."""

    generation: Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQ)]
    admins: Annotated[tuple[Admin, ...], msgspec.Meta(min_length=1, max_length=MAX_ADMINS)]
    signature: Signature

    @property
    def owner(self) -> Admin:
        return self.admins[0]

    def admin(self, sender: bytes) -> Admin | None:
        return next((one for one in self.admins if one.sender == sender), None)

    @property
    def is_consistent(self) -> bool:
        """Whether it names each admin once."""
        senders, handles = ({getattr(one, field) for one in self.admins} for field in ("sender", "handle"))
        return len(senders) == len(handles) == len(self.admins) and all(map(valid_handle, handles))

    def holds(self, group: bytes) -> bool:
        """Whether the key that it names as the owner's signed it."""
        return verifying_key(self.owner.public_key).holds(self.signature, _message(group, self))


def granted(group: bytes, before: AdminGrant | None, admins: tuple[Admin, ...], sign: Sign) -> AdminGrant:
    """The next grant, signed by the owner, which comes first among the admins. Under a new key of the owner generations
    begin anew, since a thief of the old key may have used them up."""
    if len(admins) > MAX_ADMINS:
        raise Conflict(f"a group has at most {MAX_ADMINS} admins", hint="angelia log members NAME --remove AGENT")
    goes_on = before is not None and before.owner.public_key == admins[0].public_key
    generation = before.generation + 1 if before is not None and goes_on else 1
    if generation > MAX_SEQ:
        raise Conflict("the group has used up its generations", hint="angelia key rotate --signer begins them anew")
    made = AdminGrant(generation, admins, bytes(SIGNATURE_BYTES))
    return msgspec.structs.replace(made, signature=sign(_message(group, made)))


def _message(group: bytes, grant: AdminGrant) -> bytes:
    return _LABEL + group + msgspec.msgpack.encode((grant.generation, grant.admins))
