"""Completions of this agent's snapshots: told to every node until it has forgotten what the snapshot replaces."""

from __future__ import annotations

from collections.abc import Iterable

from angelia.client.exchange import Exchange, Response
from angelia.client.log_nodes import OpenLog, ask_nodes, node_request
from angelia.errors import AngeliaError
from angelia.grouplog import api
from angelia.grouplog.model.documents import CompletionDocument
from angelia.grouplog.model.editions import EditionNode


def tell_completions(log: OpenLog) -> Exchange[None]:
    """Tells the completions of this agent to the nodes that have not carried them out. One that a later snapshot of
    this agent covers is dropped."""
    pending = log.snapshots.open_completions()
    for document, done in pending:
        if any(_covers(other, document) for other, _ in pending):
            log.snapshots.drop_completion(document)
            continue
        yield from tell_completion(log, document, [node for node in log.nodes if node.id not in done])


def tell_completion(
    log: OpenLog, document: CompletionDocument, nodes: Iterable[EditionNode]
) -> Exchange[tuple[list[bytes], dict[bytes, AngeliaError]]]:
    """Tells some nodes. Returns those that carried it out, and the others with the reason."""
    body = log.snapshots.signed_again(document)
    outcomes = yield from ask_nodes(log, nodes, lambda node: node_request(api.DELETE, node, log.gid, body=body))
    done = [node for node, outcome in outcomes.items() if isinstance(outcome, Response)]
    log.snapshots.completed_by(document, done)
    return done, {node: outcome for node, outcome in outcomes.items() if isinstance(outcome, AngeliaError)}


def _covers(later: CompletionDocument, earlier: CompletionDocument) -> bool:
    return later.seq > earlier.seq and later.level >= earlier.level
