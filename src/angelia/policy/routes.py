"""Rules over HTTP: operators list, make and remove them; whoever is known may ask what they say about it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated
from uuid import UUID

import msgspec

from angelia.api import Access, Answer, Call, PageSize, Per, Role, Route, cursor_after, parse_cursor, uuid_of
from angelia.api import Rule as Limit
from angelia.api.route import declared
from angelia.errors import Denied, InvalidArgument
from angelia.policy.model import Action, Effect, Rule, Wish, check_wish
from angelia.policy.service import Policy

CHECKS = Limit("policy", 120, 60_000, Per.AGENT)
Priority = Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)]
Seconds = Annotated[int, msgspec.Meta(ge=1, le=10 * 366 * 86_400)]


class RuleBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule to make; it stays until it is removed if no end is given. A `rate` is such as 100/1m."""

    effect: Effect
    action: Action
    subject: str
    object: str
    priority: Priority = 0
    expires_in: Seconds | None = None
    rate: str | None = None


class RuleQuery(msgspec.Struct, frozen=True):
    cursor: str | None = None
    limit: PageSize = 50


class RuleList(msgspec.Struct, frozen=True):
    """Rules in the order in which they were made, not the one in which they have the last word."""

    policies: list[Rule]
    next: str | None
    total: int


class CheckBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question to the rules; the subject is the caller if none is named."""

    subject: str | None = None
    action: Action
    object: str


class CheckAnswer(msgspec.Struct, frozen=True):
    """What the rules say; which of them said it is for operators."""

    allowed: bool
    rule_id: UUID | None


def routes(policy: Policy) -> list[Route]:
    async def list_rules(call: Call) -> Answer:
        query = call.query(RuleQuery)
        found, total = await policy.rules(parse_cursor(query.cursor), query.limit + 1)
        shown = found[: query.limit]
        more = len(found) > query.limit
        following = cursor_after(shown[-1].created_at, shown[-1].rule_id) if more else None
        return Answer(body=RuleList(shown, following, total))

    async def add(call: Call) -> Answer:
        body = call.json(RuleBody)
        rule = await policy.add(
            call.caller.known_as,
            body.effect,
            body.action,
            body.subject,
            body.object,
            call.now,
            priority=body.priority,
            life=timedelta(seconds=body.expires_in) if body.expires_in else None,
            rate=body.rate,
        )
        return Answer(201, rule)

    async def remove(call: Call) -> Answer:
        rule_id = uuid_of(call.path("rule_id"), "a rule is named by its id")
        await policy.remove(call.caller.known_as, rule_id, call.now)
        return Answer(204)

    async def check(call: Call) -> Answer:
        body = call.json(CheckBody)
        operator = call.caller.role >= Role.ADMIN
        wish = Wish(_subject(call, body.subject, operator=operator), body.action, body.object)
        check_wish(wish)
        rule = await policy.decision(wish, call.now)
        allowed = rule is not None and rule.effect is Effect.ALLOW
        return Answer(body=CheckAnswer(allowed, rule.rule_id if rule is not None and operator else None))

    return [
        declared("GET", "/v1/policies", list_rules, Access.ADMIN, "The rules", {200: RuleList}, query=RuleQuery),
        declared("POST", "/v1/policies", add, Access.ADMIN, "Make a rule", {201: Rule}, takes=RuleBody),
        declared("DELETE", "/v1/policies/{rule_id}", remove, Access.ADMIN, "Remove a rule", {204: None}),
        declared(
            "POST", "/v1/authz/check", check, Access.READ, "What the rules say, changing nothing",
            {200: CheckAnswer}, takes=CheckBody, rule=CHECKS,
        ),
    ]  # fmt: skip


def _subject(call: Call, named: str | None, *, operator: bool) -> str:
    if operator and named is not None:
        return named
    if operator and call.caller.agent is None:
        raise InvalidArgument("subject is missing, and this token is bound to no agent", hint="name a handle")
    agent = call.agent
    if named not in (None, agent.handle, str(agent.id)):
        raise Denied("an agent asks about itself only", hint="operators ask about anybody, with an admin token")
    return agent.handle
