"""Keys over HTTP: binds the operations to the services, and shapes the answers."""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar
from uuid import UUID

import msgspec

from angelia.api import AgentRow, Answer, Call, PageQuery, Role, Route, cursor_after, parse_cursor, uuid_of
from angelia.envelope.bundles import OneTimeKey
from angelia.envelope.json_form import strict_object, to_text
from angelia.errors import Denied, InvalidArgument, NotFound
from angelia.keys import api
from angelia.keys.bundle_succession import Emergency
from angelia.keys.data_key_rotation import DataKeys
from angelia.keys.model import (
    DataKeyPurpose,
    LinkDocument,
    OneTimeKeyDocument,
    Reason,
    RotationDocument,
    parse_link,
    parse_one_time_key,
)
from angelia.keys.node_key import NodeIdentity
from angelia.keys.schedules import Schedules
from angelia.keys.service import Keys

T = TypeVar("T")


class _Version(msgspec.Struct):
    """What makes one answer different from another."""

    bundle_id: str
    revoked: list[UUID] = []


def routes(keys: Keys, schedules: Schedules, data_keys: DataKeys, node: NodeIdentity) -> list[Route]:
    return [
        *_bundle_routes(keys),
        *_schedule_routes(keys, schedules),
        _data_key_route(data_keys),
        _node_route(node),
    ]


def _bundle_routes(keys: Keys) -> list[Route]:
    async def accept(
        agent: AgentRow,
        body: api.BundleBody,
        statement: RotationDocument | None,
        now: datetime,
        reason: Reason | None = None,
        emergency: Emergency | None = None,
    ) -> Answer:
        link = parse_link(LinkDocument(bundle=body.bundle, rotation_statement=statement))
        done = await keys.accept(agent, link, _one_time(body.one_time_keys), now, reason, emergency)
        answer = api.PublicationAnswer(done.bundle_hash.hex(), done.bundle_version, done.one_time_keys)
        return Answer(201 if done.new else 200, answer)

    async def publish(call: Call) -> Answer:
        return await accept(call.agent, _body(call, api.BundleBody), None, call.now)

    async def rotate(call: Call) -> Answer:
        body = _body(call, api.RotationBody)
        if body.reason is Reason.EMERGENCY:
            raise InvalidArgument("an emergency has a path of its own", hint="POST /v1/keys/emergency-rotate")
        return await accept(call.agent, body, body.rotation_statement, call.now, body.reason)

    async def emergency_rotate(call: Call) -> Answer:
        body = _body(call, api.EmergencyBody)
        refusal, hint = "only an operator rotates another agent's keys", "angelia token create --role admin"
        agent, operator = await _concerned(keys, call, body.agent_nhi, refusal, hint)
        emergency = Emergency(body.reason, min(body.compromised_since or call.now, call.now), operator)
        return await accept(agent, body, body.rotation_statement, call.now, Reason.EMERGENCY, emergency)

    async def fetch(call: Call) -> Answer:
        query, name = call.query(api.BundleQuery), call.path("agent")
        if query.since is not None:
            return Answer(body=api.BundleChain(*await keys.links_since(name, query.since, call.caller.agent, call.now)))
        if query.one_time:
            if call.caller.role < Role.READ_WRITE:
                raise Denied("a token that only reads takes no one-time keys", hint="leave out one_time")
            return Answer(
                body=await keys.bundle_with_one_time_key(name, call.agent, call.now),
                headers={"cache-control": "no-store"},
            )
        found = await keys.bundle(name, call.caller.agent, call.now)
        headers = {"etag": _etag(msgspec.json.decode(found, type=_Version)), "cache-control": "private, no-cache"}
        if headers["etag"] in [tag.strip() for tag in call.headers.get("if-none-match", "").split(",")]:
            return Answer(304, headers=headers)
        return Answer(body=found, headers=headers)

    async def revoke(call: Call) -> Answer:
        body = _body(call, api.RevokeBody) if call.body else api.RevokeBody()
        id_ = uuid_of(call.path("key_id"), "a key id is a UUID in lower case")
        revoked = await keys.revoke(call.agent, id_, call.now, body.compromised_since)
        return Answer(body=msgspec.convert(revoked, api.KeyAnswer, from_attributes=True))

    async def history(call: Call) -> Answer:
        query, name = call.query(PageQuery), call.path("agent")
        before = parse_cursor(query.cursor)
        found = await keys.history(name, before, query.and_one_more, call.caller.agent, call.now)
        shown, following = query.cut(found, lambda one: cursor_after(one.rotated_at, one.event_id))
        return Answer(body=api.KeyHistory(shown, following))

    async def add_one_time_keys(call: Call) -> Answer:
        given = _one_time(_body(call, api.OneTimeKeysBody).one_time_keys)
        return Answer(201, api.OneTimeKeysAdded(*await keys.add_one_time_keys(call.agent, given, call.now)))

    async def count_one_time_keys(call: Call) -> Answer:
        return Answer(body=api.OneTimeKeyCount(await keys.count_one_time_keys(call.agent, call.now)))

    return [
        Route(api.PUBLISH, publish),
        Route(api.FETCH, fetch),
        Route(api.ADD_ONE_TIME_KEYS, add_one_time_keys),
        Route(api.COUNT_ONE_TIME_KEYS, count_one_time_keys),
        Route(api.ROTATE, rotate),
        Route(api.EMERGENCY_ROTATE, emergency_rotate),
        Route(api.REVOKE, revoke),
        Route(api.HISTORY, history),
    ]


def _schedule_routes(keys: Keys, schedules: Schedules) -> list[Route]:
    async def owner(call: Call) -> tuple[AgentRow, str | None]:
        named = call.query(api.ScheduleOwnerQuery).agent
        refusal, hint = "an agent's schedules are its own", "an operator's token sets them for any agent"
        return await _concerned(keys, call, named, refusal, hint)

    async def list_schedules(call: Call) -> Answer:
        (agent, _), query = await owner(call), call.query(api.ScheduleQuery)
        found = await schedules.of_agent(agent, query.cursor, query.and_one_more, call.now)
        return Answer(body=api.ScheduleList(*query.cut(found, lambda one: one.peer)))

    async def put_schedule(call: Call) -> Answer:
        policy = _body(call, api.ScheduleBody).policy
        agent, operator = await owner(call)
        return Answer(body=await schedules.put(agent, call.path("peer"), policy, call.now, operator))

    async def remove_schedule(call: Call) -> Answer:
        agent, operator = await owner(call)
        await schedules.remove(agent, call.path("peer"), call.now, operator)
        return Answer(204)

    async def report_rotation(call: Call) -> Answer:
        body = _body(call, api.RotatedBody)
        changed = await schedules.rotated(call.agent, call.path("peer"), body.key_id, body.version, call.now)
        return Answer(body=changed)

    return [
        Route(api.LIST_SCHEDULES, list_schedules),
        Route(api.PUT_SCHEDULE, put_schedule),
        Route(api.REMOVE_SCHEDULE, remove_schedule),
        Route(api.REPORT_ROTATION, report_rotation),
    ]


def _data_key_route(data_keys: DataKeys) -> Route:
    async def rotate(call: Call) -> Answer:
        named = call.path("purpose")
        if named not in set(DataKeyPurpose):
            raise NotFound("there is no data key of that name", hint=f"there are {', '.join(DataKeyPurpose)}")
        purpose = DataKeyPurpose(named)
        key_id = await data_keys.rotate(purpose, call.now, call.caller.known_as)
        return Answer(201, api.DataKeyAnswer(purpose, key_id))

    return Route(api.ROTATE_DATA_KEY, rotate)


def _node_route(node: NodeIdentity) -> Route:
    async def show(call: Call) -> Answer:
        signed = node.signed()
        head = None if signed is None else api.SignedHead(signed.position, signed.entry_hash)
        return Answer(body=api.NodeRecord(node.key_id, node.public_key, head, to_text(node.public_key)))

    return Route(api.NODE, show)


async def _concerned(keys: Keys, call: Call, named: str | None, refusal: str, hint: str) -> tuple[AgentRow, str | None]:
    """The agent that a request is about, and the operator that acts for it: None if the agent itself is the caller."""
    other = call.own_or_operator(named, refusal, hint)
    return (call.agent, None) if other is None else (await keys.agent(other), call.caller.known_as)


def _body(call: Call, kind: type[T]) -> T:
    """The body as a record. A member that stands twice is refused: what is signed must have one meaning."""
    strict_object(call.body)
    return call.json(kind)


def _one_time(given: list[OneTimeKeyDocument]) -> list[OneTimeKey]:
    return [parse_one_time_key(one) for one in given]


def _etag(version: _Version) -> str:
    """The bundle's hash, and how many of its keys are revoked: a revocation changes the answer, not the bundle."""
    return f'"{version.bundle_id}{f".{len(version.revoked)}" if version.revoked else ""}"'
