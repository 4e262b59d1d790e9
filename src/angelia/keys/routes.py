"""Keys over HTTP: the public half of the node key."""

from __future__ import annotations

import base64

import msgspec

from angelia.audit.model import Signed
from angelia.guard.declarations import Access, Answer, Call, Route
from angelia.keys.node import NodeKey


class Node(msgspec.Struct, frozen=True):
    """The key that signs this server's audit checkpoints, and the last entry that it remembers to have signed."""

    key_id: str
    public_key: str
    signed: Signed | None


def routes(node: NodeKey) -> list[Route]:
    key_id, public_key = str(node.key_id), base64.b64encode(node.public_key).decode()

    async def show(call: Call) -> Answer:
        return Answer(body=Node(key_id, public_key, node.signed()))

    return [Route("GET", "/v1/node", show, Access.ANYONE, "The node's public key", {200: Node})]
