"""Rules over HTTP: binds the operations to the service."""

from __future__ import annotations

from angelia.api import Answer, Call, PageQuery, Route, cursor_after, parse_cursor, uuid_of
from angelia.errors import InvalidArgument
from angelia.policy import api
from angelia.policy.model import Effect, Wish, check_wish
from angelia.policy.service import Policy


def routes(policy: Policy) -> list[Route]:
    async def list_rules(call: Call) -> Answer:
        query = call.query(PageQuery)
        found, total = await policy.rules(parse_cursor(query.cursor), query.and_one_more)
        shown, following = query.cut(found, lambda rule: cursor_after(rule.created_at, rule.rule_id))
        return Answer(body=api.PolicyRuleList(shown, following, total))

    async def add(call: Call) -> Answer:
        return Answer(201, await policy.add(call.caller.known_as, call.json(api.PolicyRuleBody), call.now))

    async def remove(call: Call) -> Answer:
        rule_id = uuid_of(call.path("rule_id"), "a rule is named by its id")
        await policy.remove(call.caller.known_as, rule_id, call.now)
        return Answer(204)

    async def check(call: Call) -> Answer:
        body = call.json(api.PolicyCheckBody)
        wish = Wish(_subject(call, body.subject), body.action, body.object)
        check_wish(wish)
        rule = await policy.decision(wish, call.now)
        allowed = rule is not None and rule.effect is Effect.ALLOW
        shown = rule.rule_id if rule is not None and call.caller.is_operator else None
        return Answer(body=api.PolicyDecision(allowed, shown))

    return [
        Route(api.LIST, list_rules),
        Route(api.ADD, add),
        Route(api.REMOVE, remove),
        Route(api.CHECK, check),
    ]


def _subject(call: Call, named: str | None) -> str:
    """The handle that a check is about: the caller's own, or the one that an operator names."""
    other = call.own_or_operator(
        named, "an agent asks about itself only", hint="operators ask about anybody, with an admin token"
    )
    if other is not None:
        return other
    if call.caller.is_operator and call.caller.agent is None:
        raise InvalidArgument("subject is missing, and this token is bound to no agent", hint="name a handle")
    return call.agent.handle
