"""Keys over HTTP: the public half of the node key."""

from __future__ import annotations

import base64

from angelia.guard.declarations import Access, Answer, Call, Route
from angelia.keys.node import Node, NodeKey


def routes(node: NodeKey) -> list[Route]:
    key_id, public_key = str(node.key_id), base64.b64encode(node.public_key).decode()

    async def show(call: Call) -> Answer:
        return Answer(body=Node(key_id, public_key, node.signed()))

    return [Route("GET", "/v1/node", show, Access.ANYONE, "The node's public key", {200: Node})]
