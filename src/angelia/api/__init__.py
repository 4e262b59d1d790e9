"""What an operation of the API is: shared by server and SDK. A leaf package: it imports no slice."""

from angelia.api.admission import Admission, UnverifiedRequest
from angelia.api.author_proof import AicqAuthorProof, AuthorProof, SignatureAuthorProof, kept_proof
from angelia.api.caller import ROLES, Address, AgentRow, Caller, ClientAddress, Role, subject_of
from angelia.api.clock import clock
from angelia.api.operation import JSON, NOTHING, PARAMETER, Access, Operation, Per, Rule, Surface
from angelia.api.outcomes import ItemProblem, item_problem
from angelia.api.paging import Moment, PageQuery, PageSize, cursor_after, parse_cursor, uuid_of
from angelia.api.random_ids import random_id
from angelia.api.route import Answer, Call, Handler, Route
from angelia.api.sse import EVENT_STREAM, HEARTBEAT, HEARTBEAT_SECONDS, sse
from angelia.api.tick import Tick

__all__ = [
    "EVENT_STREAM",
    "HEARTBEAT",
    "HEARTBEAT_SECONDS",
    "JSON",
    "NOTHING",
    "PARAMETER",
    "ROLES",
    "Access",
    "Address",
    "Admission",
    "AgentRow",
    "AicqAuthorProof",
    "Answer",
    "AuthorProof",
    "Call",
    "Caller",
    "ClientAddress",
    "Handler",
    "ItemProblem",
    "Moment",
    "Operation",
    "PageQuery",
    "PageSize",
    "Per",
    "Role",
    "Route",
    "Rule",
    "SignatureAuthorProof",
    "Surface",
    "Tick",
    "UnverifiedRequest",
    "clock",
    "cursor_after",
    "item_problem",
    "kept_proof",
    "parse_cursor",
    "random_id",
    "sse",
    "subject_of",
    "uuid_of",
]
