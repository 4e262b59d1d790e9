"""The operations of a spool node. Data travels in frames, control in JSON."""

from __future__ import annotations

from typing import Annotated

import msgspec

from angelia.api import NOTHING, Access, Operation
from angelia.grouplog.model.documents import (
    CompletionDocument,
    DeletionResult,
    GroupDocument,
    HeldVector,
    Imported,
    NewGroup,
    NewNodes,
    NewRoster,
    NodeIdentityDocument,
    Storage,
)
from angelia.grouplog.model.frames import MEDIA

TAG = "group log"
MAX_BODY = 16 << 20
GROUP = {"gid": "The group: 32 bytes in base58"}
MESSAGE = {**GROUP, "sender": "The sender id: 16 hexadecimal digits", "seq": "The sender's number of the message"}
SHARD = {**MESSAGE, "index": "Which shard of the snapshot"}
_GROUP = "/v1/groups/{gid}"


class ImportQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which file is imported, and how many of its rows come before these."""

    source: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$", description="SHA-256 of the file")]
    before: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


CREATE = Operation(
    tag=TAG,
    method="POST",
    path="/v1/groups",
    access=Access.SIGNED,
    about="Create a group, signed by an admin of its roster. Outside open mode it takes a read-write token besides",
    answer=GroupDocument,
    statuses=(201, 200),
    body=NewGroup,
    body_limit=MAX_BODY,
    with_token=True,
)
DROP = Operation(
    tag=TAG,
    method="DELETE",
    path=_GROUP,
    access=Access.SIGNED,
    about="Drop a group with all its messages, for good; by an admin",
    answer=NOTHING,
    statuses=(204,),
    parameters=GROUP,
    private_path=True,
)
SHOW = Operation(
    tag=TAG,
    method="GET",
    path=_GROUP,
    access=Access.SIGNED,
    about="Configuration, roster and nodes of a group, with their epochs",
    answer=GroupDocument,
    parameters=GROUP,
    private_path=True,
)
APPEND = Operation(
    tag=TAG,
    method="POST",
    path=f"{_GROUP}/messages",
    access=Access.SIGNED,
    about="Append 1 to 256 messages of the caller, all or none. Answers one result frame for each",
    answer=NOTHING,
    media=MEDIA,
    reads=(MEDIA,),
    body=bytes,
    body_limit=MAX_BODY,
    parameters=GROUP,
    private_path=True,
)
READ = Operation(
    tag=TAG,
    method="GET",
    path=f"{_GROUP}/messages/{{sender}}/{{seq}}",
    access=Access.SIGNED,
    about="One message, as a frame",
    answer=NOTHING,
    media=MEDIA,
    parameters=MESSAGE,
    private_path=True,
)
BACKFILL = Operation(
    tag=TAG,
    method="POST",
    path=f"{_GROUP}/backfill",
    access=Access.SIGNED,
    about="A page of what the caller's state vector lacks: message frames, then an end frame with the floors",
    answer=NOTHING,
    media=MEDIA,
    reads=(MEDIA,),
    body=bytes,
    body_limit=MAX_BODY,
    parameters=GROUP,
    private_path=True,
)
VECTOR = Operation(
    tag=TAG,
    method="GET",
    path=f"{_GROUP}/vector",
    access=Access.SIGNED,
    about="The highest seq held of each sender, and the floors",
    answer=HeldVector,
    parameters=GROUP,
    private_path=True,
)
DELETE = Operation(
    tag=TAG,
    method="POST",
    path=f"{_GROUP}/deletions",
    access=Access.SIGNED,
    about="Forget what a durable snapshot replaced. 412 if its node receipts do not prove that it is durable",
    answer=DeletionResult,
    body=CompletionDocument,
    body_limit=MAX_BODY,
    parameters=GROUP,
    private_path=True,
)
SUBSCRIBE = Operation(
    tag=TAG,
    method="POST",
    path=f"{_GROUP}/subscribe",
    access=Access.SIGNED,
    about="A stream of frames: what the caller lacks, `caught_up`, then every message as it is stored",
    answer=NOTHING,
    media=MEDIA,
    reads=(MEDIA,),
    body=bytes,
    body_limit=MAX_BODY,
    parameters=GROUP,
    private_path=True,
    waits=True,
)
ROSTER = Operation(
    tag=TAG,
    method="PUT",
    path=f"{_GROUP}/roster",
    access=Access.SIGNED,
    about="Replace the roster, if it has the named epoch; by an admin",
    answer=GroupDocument,
    body=NewRoster,
    body_limit=MAX_BODY,
    parameters=GROUP,
    private_path=True,
)
NODES = Operation(
    tag=TAG,
    method="PUT",
    path=f"{_GROUP}/nodes",
    access=Access.SIGNED,
    about="Replace the node list, if it has the named epoch; by an admin",
    answer=GroupDocument,
    body=NewNodes,
    parameters=GROUP,
    private_path=True,
)
PUT_SHARD = Operation(
    tag=TAG,
    method="PUT",
    path=f"{_GROUP}/shards/{{sender}}/{{seq}}/{{index}}",
    access=Access.SIGNED,
    about="Store one shard of a snapshot, which its sender's manifest vouches for. Answers a node receipt",
    answer=NOTHING,
    statuses=(201, 200),
    media=MEDIA,
    reads=(MEDIA,),
    body=bytes,
    body_limit=MAX_BODY,
    parameters=SHARD,
    private_path=True,
)
HELD_SHARD = Operation(
    tag=TAG,
    method="GET",
    path=f"{_GROUP}/shards/{{sender}}/{{seq}}",
    access=Access.SIGNED,
    about="Index and manifest of the shard that this node holds of a snapshot",
    answer=NOTHING,
    media=MEDIA,
    parameters=MESSAGE,
    private_path=True,
)
SHARD_DATA = Operation(
    tag=TAG,
    method="GET",
    path=f"{_GROUP}/shards/{{sender}}/{{seq}}/{{index}}",
    access=Access.SIGNED,
    about="One shard, as a message frame",
    answer=NOTHING,
    media=MEDIA,
    parameters=SHARD,
    private_path=True,
)
STORAGE = Operation(
    tag=TAG,
    method="GET",
    path=f"{_GROUP}/storage",
    access=Access.SIGNED,
    about="What the group takes on this node, and which records are damaged",
    answer=Storage,
    parameters=GROUP,
    private_path=True,
)
IMPORT = Operation(
    tag=TAG,
    method="POST",
    path=f"{_GROUP}/import",
    access=Access.SIGNED,
    about="Store up to 1,000 rows of an old log as messages of level 0; by an admin. 409 says how many are there",
    answer=Imported,
    reads=(MEDIA,),
    body=bytes,
    query=ImportQuery,
    body_limit=MAX_BODY,
    parameters=GROUP,
    private_path=True,
)
NODE = Operation(
    tag=TAG,
    method="GET",
    path="/v1/node",
    access=Access.ANYONE,
    about="The public key of this spool node, which is its id",
    answer=NodeIdentityDocument,
)
# What a web process passes on. It has a /v1/node of its own, which tells of the same key.
OPERATIONS = (
    CREATE,
    DROP,
    SHOW,
    APPEND,
    READ,
    BACKFILL,
    VECTOR,
    DELETE,
    SUBSCRIBE,
    ROSTER,
    NODES,
    PUT_SHARD,
    HELD_SHARD,
    SHARD_DATA,
    STORAGE,
    IMPORT,
)
