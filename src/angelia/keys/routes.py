"""Keys over HTTP: the public half of the node key."""

from __future__ import annotations

import base64

import msgspec

from angelia.guard.declarations import Access, Answer, Call, Route
from angelia.keys.node import NodeKey


class Node(msgspec.Struct, frozen=True):
    """The key that signs this server's audit checkpoints."""

    key_id: str
    public_key: str


def routes(node: NodeKey) -> list[Route]:
    answer = Node(str(node.key_id), base64.b64encode(node.public_key).decode())

    async def show(call: Call) -> Answer:
        return Answer(body=answer)

    return [Route("GET", "/v1/node", show, Access.ANYONE, "The node's public key", {200: Node})]
