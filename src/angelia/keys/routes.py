"""Keys over HTTP: bundles, one-time keys, rotation and its schedules, and the public half of the node key."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Annotated, TypeVar
from uuid import UUID

import msgspec

from angelia.api import (
    Access,
    Answer,
    Call,
    Moment,
    PageSize,
    Per,
    Role,
    Route,
    Rule,
    cursor_after,
    parse_cursor,
    uuid_of,
)
from angelia.api.route import declared
from angelia.envelope.bundles import Link, OneTimeKey
from angelia.envelope.json_form import strict_object
from angelia.errors import Denied, InvalidArgument
from angelia.keys.bundle_succession import Emergency
from angelia.keys.model import (
    BundleAnswer,
    BundleDocument,
    GraceKey,
    KeyRecord,
    LinkDocument,
    OneTimeKeyDocument,
    Policy,
    Reason,
    Rotation,
    RotationDocument,
    parse_link,
    parse_one_time_key,
)
from angelia.keys.node_key import Node, NodeIdentity
from angelia.keys.schedules import Owner, Schedules, Shown
from angelia.keys.service import Keys, Published

T = TypeVar("T")

BODY_LIMIT = 1 << 20
WRITE = Rule("keys", 60, 60_000, Per.AGENT)
READ = Rule("bundles", 600, 60_000, Per.AGENT)
ONE_TIME_KEYS = Annotated[list[OneTimeKeyDocument], msgspec.Meta(max_length=100)]


class Publication(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signed bundle, and one-time keys to go with it."""

    bundle: BundleDocument
    one_time_keys: ONE_TIME_KEYS = []


class RotationBody(Publication, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The next bundle, with new active keys; a new signing pair needs a statement."""

    rotation_statement: RotationDocument | None = None
    reason: Reason = Reason.ON_DEMAND


class EmergencyBody(Publication, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class PrekeyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    one_time_keys: ONE_TIME_KEYS


class PrekeyAnswer(msgspec.Struct, frozen=True):
    added: int
    count: int


class PrekeyCount(msgspec.Struct, frozen=True):
    count: int


class RevokeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    compromised_since: Moment | None = None


class KeyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One key and how it stands."""

    key_id: UUID
    key_type: str
    status: str
    created_at: datetime
    expires_at: datetime | None
    rotated_at: datetime | None
    revoked_at: datetime | None
    compromised_since: datetime | None


class BundleQuery(msgspec.Struct, frozen=True):
    """`one_time` takes a one-time key, `since` asks for the chain of bundles after a version."""

    one_time: bool = False
    since: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] | None = None


class _Version(msgspec.Struct):
    """What makes one answer different from another."""

    bundle_id: str
    revoked: list[UUID] = []


class Links(msgspec.Struct, frozen=True):
    """The chain of bundles after a version, oldest first; `revoked` is about the newest bundle of all."""

    bundles: list[LinkDocument]
    has_more: bool
    revoked: list[UUID]


class HistoryQuery(msgspec.Struct, frozen=True):
    limit: PageSize = 50
    cursor: str | None = None


class History(msgspec.Struct, frozen=True):
    rotations: list[Rotation]
    next: str | None


class ScheduleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    policy: Policy


class RotatedBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key that the caller made, and the version that it makes the schedule."""

    key_id: UUID
    version: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


class ScheduleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A rotation schedule; `due_since` says that a rotation is asked for."""

    session_id: UUID
    peer: str
    policy: Policy
    current_key_id: UUID
    current_key_version: int
    last_rotated_at: datetime
    next_rotation_at: datetime | None
    due_since: datetime | None
    grace_period_keys: list[GraceKey]


class OwnerQuery(msgspec.Struct, frozen=True):
    """`agent` is whose schedule it is, for an operator; an agent's are its own."""

    agent: Annotated[str, msgspec.Meta(max_length=255)] | None = None


class ScheduleQuery(OwnerQuery, frozen=True):
    """`cursor` is the `next` of the page before."""

    limit: PageSize = 1000
    cursor: Annotated[str, msgspec.Meta(max_length=255)] = ""


class ScheduleList(msgspec.Struct, frozen=True):
    schedules: list[ScheduleAnswer]
    next: str | None


def routes(keys: Keys, schedules: Schedules, node: NodeIdentity) -> list[Route]:
    return [*_bundle_routes(keys), *_schedule_routes(keys, schedules), _node_route(node)]


def _bundle_routes(keys: Keys) -> list[Route]:
    async def publish(call: Call) -> Answer:
        body = _body(call, Publication)
        link = parse_link(LinkDocument(bundle=body.bundle))
        return _published(await keys.accept(call.agent, link, _one_time(body), call.now))

    async def rotate(call: Call) -> Answer:
        body = _body(call, RotationBody)
        if body.reason is Reason.EMERGENCY:
            raise InvalidArgument("an emergency has a path of its own", hint="POST /v1/keys/emergency-rotate")
        link, one_time = _link(body.bundle, body.rotation_statement), _one_time(body)
        return _published(await keys.accept(call.agent, link, one_time, call.now, body.reason))

    async def emergency_rotate(call: Call) -> Answer:
        body = _body(call, EmergencyBody)
        caller = call.caller.agent
        own = caller is not None and body.agent_nhi in (caller.handle, str(caller.id))
        if not own and call.caller.role < Role.ADMIN:
            raise Denied("only an operator rotates another agent's keys", hint="angelia token create --role admin")
        agent = caller if own and caller is not None else await keys.agent(body.agent_nhi)
        operator = None if own else call.caller.known_as
        emergency = Emergency(body.reason, min(body.compromised_since or call.now, call.now), operator)
        link, one_time = _link(body.bundle, body.rotation_statement), _one_time(body)
        return _published(await keys.accept(agent, link, one_time, call.now, Reason.EMERGENCY, emergency))

    async def fetch(call: Call) -> Answer:
        query, name = call.query(BundleQuery), call.path("agent")
        if query.since is not None:
            return Answer(body=Links(*await keys.links_since(name, query.since, call.caller.agent, call.now)))
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
        body = _body(call, RevokeBody) if call.body else RevokeBody()
        id_ = uuid_of(call.path("key_id"), "a key id is a UUID in lower case")
        return Answer(body=_key(await keys.revoke(call.agent, id_, call.now, body.compromised_since)))

    async def history(call: Call) -> Answer:
        query, name = call.query(HistoryQuery), call.path("agent")
        before = parse_cursor(query.cursor)
        found = await keys.history(name, before, query.limit + 1, call.caller.agent, call.now)
        shown = found[: query.limit]
        more = len(found) > query.limit
        following = cursor_after(shown[-1].rotated_at, shown[-1].event_id) if more else None
        return Answer(body=History(shown, following))

    async def add_prekeys(call: Call) -> Answer:
        given = [parse_one_time_key(one) for one in _body(call, PrekeyBody).one_time_keys]
        return Answer(201, PrekeyAnswer(*await keys.add_one_time_keys(call.agent, given, call.now)))

    async def count_prekeys(call: Call) -> Answer:
        return Answer(body=PrekeyCount(await keys.count_one_time_keys(call.agent, call.now)))

    return [
        declared(
            "POST", "/v1/keys/bundle", publish, Access.SIGNED, "Publish the first or the next key bundle",
            {201: PublicationAnswer, 200: PublicationAnswer}, takes=Publication, rule=WRITE, body_limit=BODY_LIMIT,
        ),
        declared(
            "GET", "/v1/keys/bundle/{agent}", fetch, Access.READ,
            "An agent's key bundle, with a one-time key, or the chain of bundles",
            {200: (BundleAnswer, Links), 304: None}, query=BundleQuery, rule=READ,
        ),
        declared(
            "POST", "/v1/keys/prekeys", add_prekeys, Access.SIGNED, "Add one-time keys",
            {201: PrekeyAnswer}, takes=PrekeyBody, rule=WRITE, body_limit=BODY_LIMIT,
        ),
        declared("GET", "/v1/keys/prekeys/count", count_prekeys, Access.AGENT, "Unused one-time keys", {200: PrekeyCount}),
        declared(
            "POST", "/v1/keys/rotate", rotate, Access.SIGNED, "Replace keys; the old ones go into grace",
            {201: PublicationAnswer, 200: PublicationAnswer}, takes=RotationBody, rule=WRITE, body_limit=BODY_LIMIT,
        ),
        declared(
            "POST", "/v1/keys/emergency-rotate", emergency_rotate, Access.WRITE, "Replace keys that may be stolen",
            {201: PublicationAnswer, 200: PublicationAnswer}, takes=EmergencyBody, rule=WRITE, body_limit=BODY_LIMIT,
        ),
        declared(
            "POST", "/v1/keys/{key_id}/revoke", revoke, Access.SIGNED, "Withdraw one key at once",
            {200: KeyAnswer}, takes=RevokeBody, rule=WRITE, body_limit=BODY_LIMIT,
        ),
        declared(
            "GET", "/v1/keys/{agent}/history", history, Access.READ, "Rotations of an agent's keys, newest first",
            {200: History}, query=HistoryQuery, rule=READ,
        ),
    ]  # fmt: skip


def _schedule_routes(keys: Keys, schedules: Schedules) -> list[Route]:
    async def owner(call: Call) -> Owner:
        """The caller, or the agent that an operator names."""
        named, caller = call.query(OwnerQuery).agent, call.caller.agent
        if named is None or (caller is not None and named in (caller.handle, str(caller.id))):
            return Owner(call.agent)
        if call.caller.role < Role.ADMIN:
            raise Denied("an agent's schedules are its own", hint="an operator's token sets them for any agent")
        return Owner(await keys.agent(named), call.caller.known_as)

    async def list_all(call: Call) -> Answer:
        whose, query = await owner(call), call.query(ScheduleQuery)
        held = await schedules.of_agent(whose.agent, query.cursor, query.limit + 1, call.now)
        shown = [_schedule(one) for one in held[: query.limit]]
        return Answer(body=ScheduleList(shown, shown[-1].peer if len(held) > query.limit else None))

    async def put(call: Call) -> Answer:
        policy = _body(call, ScheduleBody).policy
        whose = await owner(call)
        made = await schedules.put(whose.agent, call.path("peer"), policy, call.now, whose.operator)
        return Answer(body=_schedule(made))

    async def remove(call: Call) -> Answer:
        whose = await owner(call)
        await schedules.remove(whose.agent, call.path("peer"), call.now, whose.operator)
        return Answer(204)

    async def rotated(call: Call) -> Answer:
        body = _body(call, RotatedBody)
        changed = await schedules.rotated(call.agent, call.path("peer"), body.key_id, body.version, call.now)
        return Answer(body=_schedule(changed))

    return [
        declared(
            "GET", "/v1/schedules", list_all, Access.READ, "The caller's rotation schedules",
            {200: ScheduleList}, query=ScheduleQuery,
        ),
        declared(
            "PUT", "/v1/schedules/{peer}", put, Access.WRITE, "Make or change a rotation schedule of the caller",
            {200: ScheduleAnswer}, takes=ScheduleBody, query=OwnerQuery, rule=WRITE,
        ),
        declared(
            "DELETE", "/v1/schedules/{peer}", remove, Access.WRITE, "Remove a rotation schedule of the caller",
            {204: None}, query=OwnerQuery, rule=WRITE,
        ),
        declared(
            "POST", "/v1/schedules/{peer}/rotated", rotated, Access.AGENT, "Report a new key for a schedule",
            {200: ScheduleAnswer}, takes=RotatedBody, rule=WRITE,
        ),
    ]  # fmt: skip


def _node_route(node: NodeIdentity) -> Route:
    key_id, public_key = str(node.key_id), base64.b64encode(node.public_key).decode()

    async def show(call: Call) -> Answer:
        return Answer(body=Node(key_id, public_key, node.signed()))

    return declared("GET", "/v1/node", show, Access.ANYONE, "The node's public key", {200: Node})


def _body(call: Call, kind: type[T]) -> T:
    """What is going to be signed for must have one meaning: a member that stands twice is refused."""
    strict_object(call.body)
    return call.json(kind)


def _link(bundle: BundleDocument, statement: RotationDocument | None) -> Link:
    return parse_link(LinkDocument(bundle=bundle, rotation_statement=statement))


def _one_time(body: Publication) -> list[OneTimeKey]:
    return [parse_one_time_key(one) for one in body.one_time_keys]


def _published(done: Published) -> Answer:
    answer = PublicationAnswer(done.bundle_hash.hex(), done.bundle_version, done.one_time_keys)
    return Answer(201 if done.new else 200, answer)


def _etag(version: _Version) -> str:
    """The bundle's hash; a key revoked since makes it another one, although the bundle is the same."""
    return f'"{version.bundle_id}{f".{len(version.revoked)}" if version.revoked else ""}"'


def _key(record: KeyRecord) -> KeyAnswer:
    return KeyAnswer(
        key_id=record.key_id,
        key_type=record.key_type,
        status=record.status.value,
        created_at=record.created_at,
        expires_at=record.expires_at,
        rotated_at=record.rotated_at,
        revoked_at=record.revoked_at,
        compromised_since=record.compromised_since,
    )


def _schedule(shown: Shown) -> ScheduleAnswer:
    held = shown.schedule
    return ScheduleAnswer(
        session_id=held.session_id,
        peer=held.peer,
        policy=held.policy,
        current_key_id=held.current_key_id,
        current_key_version=held.current_key_version,
        last_rotated_at=held.last_rotated_at,
        next_rotation_at=held.next_rotation_at,
        due_since=held.due_since,
        grace_period_keys=shown.grace_keys,
    )
