"""Verbs of keys that do more than carry one operation: documents of bundles, pages, and the credential to use."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from angelia.client.exchange import MOST_PAGES, BadAnswer, Exchange
from angelia.client.operation_requests import ask, credential_for, request_for
from angelia.envelope.bundles import Link, OneTimeKey
from angelia.keys import api
from angelia.keys.api import BundleChain, OneTimeKeysAdded, PublicationAnswer
from angelia.keys.model import (
    BundleAnswer,
    OneTimeKeyDocument,
    Reason,
    RotationPolicy,
    ScheduleRecord,
    link_document,
    one_time_document,
)


def publish_bundle(link: Link, one_time_keys: Sequence[OneTimeKey] = ()) -> Exchange[PublicationAnswer]:
    """Publishes the first bundle of the agent that signs, or its next one with the same active keys."""
    body = api.BundleBody(bundle=link_document(link).bundle, one_time_keys=_documents(one_time_keys))
    return ask(api.PUBLISH, body=body)


def rotate_bundle(
    link: Link, one_time_keys: Sequence[OneTimeKey] = (), *, reason: Reason = Reason.ON_DEMAND
) -> Exchange[PublicationAnswer]:
    """Publishes the next bundle, whose keys are new; the old ones go into grace."""
    body = api.RotationBody(**_members(link), one_time_keys=_documents(one_time_keys), reason=reason)
    return ask(api.ROTATE, body=body)


def emergency_bundle(
    link: Link,
    one_time_keys: Sequence[OneTimeKey] = (),
    *,
    why: str,
    compromised_since: datetime | None = None,
) -> Exchange[PublicationAnswer]:
    """Publishes the next bundle after keys may have been stolen: the old ones are revoked at once."""
    body = api.EmergencyBody(
        **_members(link),
        one_time_keys=_documents(one_time_keys),
        agent_nhi=link.bundle.agent_nhi,
        reason=why,
        compromised_since=compromised_since,
    )
    return ask(api.EMERGENCY_ROTATE, body=body)


def bundle(agent: str, *, one_time: bool = False) -> Exchange[BundleAnswer]:
    """Returns an agent's newest bundle, not yet checked; `one_time` takes one of its one-time keys."""
    # A request that takes a key is not repeated: each one takes another key.
    return ask(api.FETCH, agent, query=api.BundleQuery(one_time=one_time), idempotent=not one_time)


def bundles_since(agent: str, version: int) -> Exchange[BundleChain]:
    """Returns a page of an agent's bundles after a version, so that every link of the chain can be checked. Raises
    BadAnswer if a page that promises more does not lead on."""
    answer = yield request_for(api.FETCH, agent, query=api.BundleQuery(since=version))
    page = answer.read(BundleChain)
    if page.has_more and page.bundles and page.bundles[-1].bundle.bundle_version <= version:
        raise BadAnswer(f"asked for the bundles of {agent} after {version}, the server gave earlier ones and says more")
    return page


def add_one_time_keys(keys: Sequence[OneTimeKey]) -> Exchange[OneTimeKeysAdded]:
    """Adds one-time keys, which the server hands out to senders."""
    return ask(api.ADD_ONE_TIME_KEYS, body=api.OneTimeKeysBody(_documents(keys)))


def schedules() -> Exchange[list[ScheduleRecord]]:
    """Returns all rotation schedules of the agent that signs; `due_since` tells which ask for a rotation."""
    found: list[ScheduleRecord] = []
    cursor = ""
    for _ in range(MOST_PAGES):
        page = yield from ask(api.LIST_SCHEDULES, query=api.ScheduleQuery(cursor=cursor))
        found += page.schedules
        if page.next is None or page.next == cursor:
            return found
        cursor = page.next
    raise BadAnswer(f"the list of schedules did not end after {MOST_PAGES} pages")


def put_schedule(peer: str, policy: RotationPolicy, *, agent: str | None = None) -> Exchange[ScheduleRecord]:
    """Makes or changes the caller's rotation schedule with a peer, or as an operator that of an agent."""
    whose, body = api.ScheduleOwnerQuery(agent=agent), api.ScheduleBody(policy)
    return ask(api.PUT_SCHEDULE, peer, query=whose, body=body, credential=credential_for(agent))


def remove_schedule(peer: str, *, agent: str | None = None) -> Exchange[None]:
    """Removes the caller's rotation schedule with a peer, or as an operator that of an agent."""
    whose = api.ScheduleOwnerQuery(agent=agent)
    return ask(api.REMOVE_SCHEDULE, peer, query=whose, credential=credential_for(agent))


def _members(link: Link) -> dict[str, Any]:
    return msgspec.structs.asdict(link_document(link))


def _documents(keys: Sequence[OneTimeKey]) -> list[OneTimeKeyDocument]:
    return [one_time_document(one) for one in keys]
