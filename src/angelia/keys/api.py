"""The operations on keys: bundles, one-time keys, rotation and its schedules, and the public half of the node key."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from angelia.api import NOTHING, Access, Moment, Operation, PageQuery, PageSize, Per, Rule
from angelia.keys.model import (
    ONE_TIME_BATCH,
    BundleAnswer,
    BundleDocument,
    DataKeyPurpose,
    LinkDocument,
    OneTimeKeyDocument,
    Reason,
    Rotation,
    RotationDocument,
    RotationPolicy,
    ScheduleRecord,
)

TAG = "keys"
BODY_LIMIT = 1 << 20
WRITE_RULE = Rule("keys", 60, 60_000, Per.AGENT)
READ_RULE = Rule("bundles", 600, 60_000, Per.AGENT)

OneTimeKeys = Annotated[list[OneTimeKeyDocument], msgspec.Meta(max_length=ONE_TIME_BATCH)]
OwnerName = Annotated[
    str, msgspec.Meta(max_length=255, description="The agent whose schedules are meant, for operators; else the caller")
]


class BundleBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signed bundle, and one-time keys to go with it."""

    bundle: BundleDocument
    one_time_keys: OneTimeKeys = []


class RotationBody(BundleBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The next bundle, with new active keys; a new signing pair needs a statement."""

    rotation_statement: RotationDocument | None = None
    reason: Reason = Reason.ON_DEMAND


class EmergencyBody(BundleBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The next bundle after keys may have been stolen."""

    agent_nhi: str
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    compromised_since: Moment | None = None
    rotation_statement: RotationDocument | None = None


class PublicationAnswer(msgspec.Struct, frozen=True):
    """`bundle_id` is the bundle's hash; `prekeys_uploaded` counts the unused one-time keys that the server holds."""

    bundle_id: str
    bundle_version: int
    prekeys_uploaded: int


class OneTimeKeysBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    one_time_keys: OneTimeKeys


class OneTimeKeysAdded(msgspec.Struct, frozen=True):
    """How many one-time keys are new, and how many unused ones there are now."""

    added: int
    count: int


class OneTimeKeyCount(msgspec.Struct, frozen=True):
    """How many unused one-time keys there are."""

    count: int


class RevokeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    compromised_since: Moment | None = None


class KeyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One key and its status."""

    key_id: UUID
    key_type: str
    status: str
    created_at: datetime
    expires_at: datetime | None
    rotated_at: datetime | None
    revoked_at: datetime | None
    compromised_since: datetime | None


class BundleQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which form of a bundle is wanted: alone, with a one-time key, or the chain of bundles."""

    one_time: Annotated[bool, msgspec.Meta(description="Take one of the agent's one-time keys")] = False
    since: (
        Annotated[int, msgspec.Meta(ge=0, lt=1 << 53, description="The chain of bundles after this version")] | None
    ) = None


class BundleChain(msgspec.Struct, frozen=True):
    """The chain of bundles after a version, oldest first; `revoked` is about the newest bundle of all."""

    bundles: list[LinkDocument]
    has_more: bool
    revoked: list[UUID]


class KeyHistory(msgspec.Struct, frozen=True):
    """A page of rotations, newest first."""

    rotations: list[Rotation]
    next: str | None


class ScheduleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    policy: RotationPolicy


class RotatedBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key that the caller made, and the version that it makes the schedule."""

    key_id: UUID
    version: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


class ScheduleOwnerQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Whose schedule is meant."""

    agent: OwnerName | None = None


class ScheduleQuery(PageQuery, frozen=True, kw_only=True):
    """Schedules in the order of their peers."""

    agent: OwnerName | None = None
    limit: PageSize = 1000
    cursor: Annotated[
        str, msgspec.Meta(max_length=255, description="Where to go on: the `next` of the page before")
    ] = ""


class ScheduleList(msgspec.Struct, frozen=True):
    """A page of rotation schedules, in the order of their peers."""

    schedules: list[ScheduleRecord]
    next: str | None


class SignedHead(msgspec.Struct, frozen=True):
    """The last entry of the audit chain that a node signed, by the node's own memory."""

    position: int
    entry_hash: str


class NodeRecord(msgspec.Struct, frozen=True):
    """The key that signs this server's audit checkpoints, and the last entry that it remembers to have signed."""

    key_id: UUID
    public_key: bytes
    signed: SignedHead | None
    id: str = ""  # the public key as nodes of group logs are named: base64url


class DataKeyAnswer(msgspec.Struct, frozen=True):
    """The new data key of a purpose. The key itself never leaves the server."""

    purpose: DataKeyPurpose
    key_id: UUID


_AGENT = {"agent": "The agent's handle or id"}
_PEER = {"peer": "The handle or id of the agent that the keys are for"}

PUBLISH = Operation(
    TAG, "POST", "/v1/keys/bundle", Access.SIGNED, "Publish the first or the next key bundle", PublicationAnswer,
    statuses=(201, 200), body=BundleBody, rule=WRITE_RULE, body_limit=BODY_LIMIT,
)  # fmt: skip
FETCH = Operation(
    TAG, "GET", "/v1/keys/bundle/{agent}", Access.READ,
    "An agent's key bundle, with a one-time key, or the chain of bundles", BundleAnswer,
    empty=(304,), or_else=(BundleChain,), query=BundleQuery, parameters=_AGENT, rule=READ_RULE,
)  # fmt: skip
ADD_ONE_TIME_KEYS = Operation(
    TAG, "POST", "/v1/keys/prekeys", Access.SIGNED, "Add one-time keys", OneTimeKeysAdded,
    statuses=(201,), body=OneTimeKeysBody, rule=WRITE_RULE, body_limit=BODY_LIMIT,
)  # fmt: skip
COUNT_ONE_TIME_KEYS = Operation(
    TAG, "GET", "/v1/keys/prekeys/count", Access.AGENT, "Unused one-time keys", OneTimeKeyCount
)  # fmt: skip
ROTATE = Operation(
    TAG, "POST", "/v1/keys/rotate", Access.SIGNED, "Replace keys; the old ones go into grace", PublicationAnswer,
    statuses=(201, 200), body=RotationBody, rule=WRITE_RULE, body_limit=BODY_LIMIT,
)  # fmt: skip
EMERGENCY_ROTATE = Operation(
    TAG, "POST", "/v1/keys/emergency-rotate", Access.WRITE, "Replace keys that may be stolen", PublicationAnswer,
    statuses=(201, 200), body=EmergencyBody, rule=WRITE_RULE, body_limit=BODY_LIMIT,
)  # fmt: skip
REVOKE = Operation(
    TAG, "POST", "/v1/keys/{key_id}/revoke", Access.SIGNED, "Withdraw one key at once", KeyAnswer,
    body=RevokeBody, parameters={"key_id": "The key's id"}, rule=WRITE_RULE, body_limit=BODY_LIMIT,
)  # fmt: skip
HISTORY = Operation(
    TAG, "GET", "/v1/keys/{agent}/history", Access.READ, "Rotations of an agent's keys, newest first", KeyHistory,
    query=PageQuery, parameters=_AGENT, rule=READ_RULE,
)  # fmt: skip
LIST_SCHEDULES = Operation(
    TAG, "GET", "/v1/schedules", Access.READ, "The caller's rotation schedules", ScheduleList, query=ScheduleQuery
)  # fmt: skip
PUT_SCHEDULE = Operation(
    TAG, "PUT", "/v1/schedules/{peer}", Access.WRITE, "Make or change a rotation schedule of the caller",
    ScheduleRecord, body=ScheduleBody, query=ScheduleOwnerQuery, parameters=_PEER, rule=WRITE_RULE,
)  # fmt: skip
REMOVE_SCHEDULE = Operation(
    TAG, "DELETE", "/v1/schedules/{peer}", Access.WRITE, "Remove a rotation schedule of the caller", NOTHING,
    statuses=(204,), query=ScheduleOwnerQuery, parameters=_PEER, rule=WRITE_RULE, repeatable=False,
)  # fmt: skip
REPORT_ROTATION = Operation(
    TAG, "POST", "/v1/schedules/{peer}/rotated", Access.AGENT, "Report a new key for a schedule", ScheduleRecord,
    body=RotatedBody, parameters=_PEER, rule=WRITE_RULE,
)  # fmt: skip
ROTATE_DATA_KEY = Operation(
    TAG, "POST", "/v1/keys/data/{purpose}/rotate", Access.ADMIN,
    "Replace a data key of the server; what the old one encrypted stays readable", DataKeyAnswer,
    statuses=(201,), parameters={"purpose": f"What it encrypts: {' or '.join(DataKeyPurpose)}"}, repeatable=False,
)  # fmt: skip
NODE = Operation(TAG, "GET", "/v1/node", Access.ANYONE, "The node's public key", NodeRecord)
