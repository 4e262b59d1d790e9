"""A spool node over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from angelia.api import Answer, Call, Handler, Operation, Route
from angelia.envelope.ids import KeyType, key_id
from angelia.envelope.json_form import to_text
from angelia.errors import InvalidArgument
from angelia.grouplog import api
from angelia.grouplog.importing import MOST_ROWS
from angelia.grouplog.live_group import LiveGroup
from angelia.grouplog.member_caller import MemberCaller
from angelia.grouplog.model import frames
from angelia.grouplog.model.documents import CompletionDocument, NewGroup, NewNodes, NewRoster, NodeIdentityDocument
from angelia.grouplog.model.frames import MEDIA, Backfill, Hello, LogMessage, Type
from angelia.grouplog.model.groups import MAX_BATCH, GroupMember
from angelia.grouplog.model.ids import parse_sender, parse_seq
from angelia.grouplog.service import GroupLog

_Handler = Callable[[Call, LiveGroup, GroupMember], Awaitable[Answer]]


def routes(service: GroupLog, node_id: bytes) -> list[Route]:
    identity = NodeIdentityDocument(id=to_text(node_id), key_id=key_id(KeyType.ED25519, node_id), public_key=node_id)

    async def node(call: Call) -> Answer:
        return Answer(body=identity)

    async def create(call: Call) -> Answer:
        caller = _caller(call)
        made, is_new = await service.create(call.json(NewGroup), caller.public_key)
        return Answer(201 if is_new else 200, made)

    async def drop(call: Call, group: LiveGroup, member: GroupMember) -> Answer:
        await service.drop(group, member)
        return Answer(204)

    async def show(call: Call, group: LiveGroup, member: GroupMember) -> Answer:
        return Answer(body=service.shown(group))

    async def append(call: Call, group: LiveGroup, member: GroupMember) -> Answer:
        messages = [LogMessage.decode(body) for body in frames.split(call.body, Type.MESSAGE, MAX_BATCH)]
        results = await service.append(group, member, messages)
        return _framed(b"".join(result.encode() for result in results))

    async def read(call: Call, group: LiveGroup, member: GroupMember) -> Answer:
        return _framed((await service.message(group, *_id(call))).encode())

    async def backfill(call: Call, group: LiveGroup, member: GroupMember) -> Answer:
        (body,) = frames.split(call.body, Type.BACKFILL, 1)
        return _framed(await service.backfill(group, Backfill.decode(body)))

    async def vector(call: Call, group: LiveGroup, member: GroupMember) -> Answer:
        return Answer(body=await service.vector(group))

    async def delete(call: Call, group: LiveGroup, member: GroupMember) -> Answer:
        return Answer(body=await service.delete(group, member, call.json(CompletionDocument)))

    async def subscribe(call: Call, group: LiveGroup, member: GroupMember) -> Answer:
        (body,) = frames.split(call.body, Type.HELLO, 1)
        stream = await service.subscribe(group, member, Hello.decode(body))
        return Answer(stream=stream, content_type=MEDIA)

    async def roster(call: Call, group: LiveGroup, member: GroupMember) -> Answer:
        return Answer(body=await service.replace_roster(group, member, call.json(NewRoster)))

    async def nodes(call: Call, group: LiveGroup, member: GroupMember) -> Answer:
        return Answer(body=await service.replace_nodes(group, member, call.json(NewNodes)))

    async def put_shard(call: Call, group: LiveGroup, member: GroupMember) -> Answer:
        (body,) = frames.split(call.body, Type.MESSAGE, 1)
        message = LogMessage.decode(body)
        if (message.sender, message.seq) != _id(call):
            raise InvalidArgument("the body is of another message than the path")
        signature, status = await service.put_shard(group, member, message, _index(call))
        stored = 201 if status is frames.Status.STORED else 200
        return Answer(stored, frames.receipt_frame(signature), content_type=MEDIA)

    async def held_shard(call: Call, group: LiveGroup, member: GroupMember) -> Answer:
        return _framed((await service.held_shard(group, *_id(call))).encode())

    async def shard(call: Call, group: LiveGroup, member: GroupMember) -> Answer:
        return _framed((await service.shard(group, *_id(call), _index(call))).encode())

    async def storage(call: Call, group: LiveGroup, member: GroupMember) -> Answer:
        return Answer(body=await service.storage(group))

    async def import_rows(call: Call, group: LiveGroup, member: GroupMember) -> Answer:
        query = call.query(api.ImportQuery)
        messages = [LogMessage.decode(body) for body in frames.split(call.body, Type.MESSAGE, MOST_ROWS)]
        return Answer(body=await service.import_rows(group, member, query.source, query.before, messages))

    of_group: list[tuple[Operation[Any], _Handler]] = [
        (api.DROP, drop),
        (api.SHOW, show),
        (api.APPEND, append),
        (api.READ, read),
        (api.BACKFILL, backfill),
        (api.VECTOR, vector),
        (api.DELETE, delete),
        (api.SUBSCRIBE, subscribe),
        (api.ROSTER, roster),
        (api.NODES, nodes),
        (api.PUT_SHARD, put_shard),
        (api.HELD_SHARD, held_shard),
        (api.SHARD_DATA, shard),
        (api.STORAGE, storage),
        (api.IMPORT, import_rows),
    ]
    with_group = [Route(operation, _for_member(handler)) for operation, handler in of_group]
    return [Route(api.NODE, node), Route(api.CREATE, create), *with_group]


def _for_member(handler: _Handler) -> Handler:
    async def handle(call: Call) -> Answer:
        caller = _caller(call)
        assert caller.group is not None, "routes of a group admit its members"
        assert caller.member is not None, "routes of a group admit its members"
        return await handler(call, caller.group, caller.member)

    return handle


def _caller(call: Call) -> MemberCaller:
    assert isinstance(call.caller, MemberCaller), "the roster guard admits members only"
    return call.caller


def _framed(body: bytes) -> Answer:
    return Answer(body=body, content_type=MEDIA)


def _id(call: Call) -> tuple[bytes, int]:
    return parse_sender(call.path("sender")), parse_seq(call.path("seq"))


def _index(call: Call) -> int:
    text = call.path("index")
    if not (text.isascii() and text.isdecimal() and len(text) <= 3 and int(text) < 255):
        raise InvalidArgument("an index is a number from 0 to 254")
    return int(text)
