"""The operations on rules: operators list, add and remove them; an agent asks what they say about it."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec

from angelia.api import NOTHING, Access, Operation, PageQuery, Per, Rule
from angelia.policy.model import Action, Effect, PolicyRule

TAG = "policy"
CHECK_RULE = Rule("policy", 120, 60_000, Per.AGENT)
Priority = Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)]
Seconds = Annotated[int, msgspec.Meta(ge=1, le=10 * 366 * 86_400)]


class PolicyRuleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule to add; it stays until it is removed if no end is given. A `rate` is such as 100/1m."""

    effect: Effect
    action: Action
    subject: str
    object: str
    priority: Priority = 0
    expires_in: Seconds | None = None
    rate: str | None = None


class PolicyRuleList(msgspec.Struct, frozen=True):
    """A page of rules in order of creation, which is not the order of their precedence."""

    policies: list[PolicyRule]
    next: str | None
    total: int


class PolicyCheckBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question to the rules; the subject is the caller if none is named."""

    subject: str | None = None
    action: Action
    object: str


class PolicyDecision(msgspec.Struct, frozen=True):
    """What the rules say. Only operators are told which rule decided; without one, no rule allows it."""

    allowed: bool
    rule_id: UUID | None


LIST = Operation(TAG, "GET", "/v1/policies", Access.ADMIN, "The rules", PolicyRuleList, query=PageQuery)
ADD = Operation(
    TAG, "POST", "/v1/policies", Access.ADMIN, "Make a rule", PolicyRule,
    statuses=(201,), body=PolicyRuleBody, repeatable=False,
)  # fmt: skip
REMOVE = Operation(
    TAG, "DELETE", "/v1/policies/{rule_id}", Access.ADMIN, "Remove a rule", NOTHING,
    statuses=(204,), parameters={"rule_id": "The rule's id"}, repeatable=False,
)  # fmt: skip
CHECK = Operation(
    TAG, "POST", "/v1/authz/check", Access.READ, "What the rules say, changing nothing", PolicyDecision,
    body=PolicyCheckBody, rule=CHECK_RULE,
)  # fmt: skip
