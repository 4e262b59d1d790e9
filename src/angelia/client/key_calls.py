"""The verbs of keys: bundles, one-time keys, rotation and its schedules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from angelia.client.answers import (
    History,
    Key,
    Links,
    OneTimeKeysAdded,
    OneTimeKeysLeft,
    Published,
    Schedule,
    Schedules,
)
from angelia.client.exchange import MOST_PAGES, BadAnswer, Credential, Exchange, Request, document, path, query
from angelia.envelope.bundles import Link, OneTimeKey
from angelia.keys.model import (
    BundleAnswer,
    Reason,
    RotationPolicy,
    bundle_document,
    one_time_document,
    rotation_document,
)


def publish_bundle(link: Link, one_time_keys: Sequence[OneTimeKey] = ()) -> Exchange[Published]:
    """Publish the first bundle of the agent that signs, or its next one with the same active keys."""
    answer = yield Request("POST", "/v1/keys/bundle", body=_publication(link, one_time_keys))
    return answer.read(Published)


def rotate_bundle(
    link: Link, one_time_keys: Sequence[OneTimeKey] = (), *, reason: Reason = Reason.ON_DEMAND
) -> Exchange[Published]:
    """Publish the next bundle, whose keys are new; the old ones go into grace."""
    body = _publication(link, one_time_keys, reason=reason)
    answer = yield Request("POST", "/v1/keys/rotate", body=body)
    return answer.read(Published)


def emergency_bundle(
    link: Link,
    one_time_keys: Sequence[OneTimeKey] = (),
    *,
    why: str,
    compromised_since: datetime | None = None,
) -> Exchange[Published]:
    """Publish the next bundle after keys may have been stolen: the old ones are revoked at once."""
    named = link.bundle.agent_nhi
    body = _publication(link, one_time_keys, agent_nhi=named, reason=why, compromised_since=compromised_since)
    answer = yield Request("POST", "/v1/keys/emergency-rotate", body=body)
    return answer.read(Published)


def bundle(agent: str, *, one_time: bool = False) -> Exchange[BundleAnswer]:
    """An agent's newest bundle, not yet checked; `one_time` takes one of its one-time keys."""
    wish = query(one_time="true" if one_time else None)
    answer = yield Request("GET", path("v1", "keys", "bundle", agent), wish, idempotent=not one_time)
    return answer.read(BundleAnswer)


def bundles_since(agent: str, version: int) -> Exchange[Links]:
    """A page of an agent's bundles after a version, so that every link of the chain can be checked. One that promises
    more leads on: the next is asked for from its end."""
    answer = yield Request("GET", path("v1", "keys", "bundle", agent), query(since=version))
    page = answer.read(Links)
    if page.has_more and page.bundles and page.bundles[-1].bundle.bundle_version <= version:
        raise BadAnswer(f"asked for the bundles of {agent} after {version}, the server gave earlier ones and says more")
    return page


def add_one_time_keys(keys: Sequence[OneTimeKey]) -> Exchange[OneTimeKeysAdded]:
    """Give the server more one-time keys to hand out."""
    body = document(one_time_keys=[one_time_document(one) for one in keys])
    answer = yield Request("POST", "/v1/keys/prekeys", body=body)
    return answer.read(OneTimeKeysAdded)


def count_one_time_keys() -> Exchange[int]:
    """How many unused one-time keys of the agent that signs the server has."""
    answer = yield Request("GET", "/v1/keys/prekeys/count")
    return answer.read(OneTimeKeysLeft).count


def revoke_key(key_id: UUID, *, compromised_since: datetime | None = None) -> Exchange[Key]:
    """Withdraw one key of the agent that signs, at once."""
    body = document(compromised_since=compromised_since)
    answer = yield Request("POST", path("v1", "keys", str(key_id), "revoke"), body=body)
    return answer.read(Key)


def key_history(agent: str, *, cursor: str | None = None, limit: int | None = None) -> Exchange[History]:
    """A page of the rotations of an agent's keys, newest first."""
    answer = yield Request("GET", path("v1", "keys", agent, "history"), query(cursor=cursor, limit=limit))
    return answer.read(History)


def schedules() -> Exchange[list[Schedule]]:
    """The rotation schedules of the agent that signs; `due_since` tells which ask for a rotation."""
    found: list[Schedule] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        answer = yield Request("GET", "/v1/schedules", query(cursor=cursor))
        page = answer.read(Schedules)
        found += page.schedules
        if page.next is None or page.next == cursor:
            return found
        cursor = page.next
    raise BadAnswer(f"the list of schedules did not end after {MOST_PAGES} pages")


def put_schedule(peer: str, policy: RotationPolicy, *, agent: str | None = None) -> Exchange[Schedule]:
    """Make or change the rotation schedule with a peer: one's own, or as an operator that of an agent."""
    answer = yield Request(
        "PUT",
        path("v1", "schedules", peer),
        query(agent=agent),
        body=document(policy=policy),
        credential=Credential.AGENT if agent is None else Credential.OPERATOR,
    )
    return answer.read(Schedule)


def remove_schedule(peer: str, *, agent: str | None = None) -> Exchange[None]:
    """Remove the rotation schedule with a peer: one's own, or as an operator that of an agent."""
    answer = yield Request(
        "DELETE",
        path("v1", "schedules", peer),
        query(agent=agent),
        idempotent=False,
        credential=Credential.AGENT if agent is None else Credential.OPERATOR,
    )
    answer.nothing()


def report_rotation(peer: str, key_id: UUID, version: int) -> Exchange[Schedule]:
    """Say that a schedule of one's own has a new key; of several processes that say it, one is right."""
    body = msgspec.json.encode({"key_id": key_id, "version": version})
    answer = yield Request("POST", path("v1", "schedules", peer, "rotated"), body=body)
    return answer.read(Schedule)


def _publication(link: Link, one_time_keys: Sequence[OneTimeKey], **more: object) -> bytes:
    return document(
        bundle=bundle_document(link.bundle),
        rotation_statement=None if link.statement is None else rotation_document(link.statement),
        one_time_keys=[one_time_document(one) for one in one_time_keys],
        **more,
    )
