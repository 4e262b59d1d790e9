"""Checks in the archive that it has the audit entries that left the ledger: the ledger only claims so."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

from angelia.cli.command_context import CommandContext
from angelia.errors import AngeliaError

if TYPE_CHECKING:
    from uuid import UUID

    from angelia.audit.model import Floor
    from angelia.stores.objects import Objects

_NEEDED = ("pyarrow", "deltalake")


@dataclass(frozen=True, slots=True)
class Archived:
    """What is wrong with the archive, or why it is unproven; neither if it has the last entry that left the ledger."""

    wrong: str | None = None
    unproven: str | None = None


def look(session: CommandContext, floor: Floor, node_key_id: UUID, lake: str | None) -> Archived:
    """Compares the last entry that left the ledger with the archive's."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return _unread(f"{missing[0]} is not installed here")
    if lake is None and session.settings.lake is None and not _is_the_servers(session, node_key_id):
        return _unread("it lies with the server; --lake names it")
    from deltalake.exceptions import DeltaError
    from pyarrow.lib import ArrowException

    from angelia.cli.pipeline_environment import PipelineFlags

    try:
        return _compared(PipelineFlags(lake=lake).archive(session.settings), floor)
    except AngeliaError as error:
        return _unread(error.message)
    except (DeltaError, ArrowException, OSError) as error:
        return _unread(str(error).partition("\n")[0])


def _compared(objects: Objects, floor: Floor) -> Archived:
    from angelia.pipeline.lake.audit_chain import archive_floor, entry_hash

    begins = archive_floor(objects)
    present = begins.entry_hash if begins.position == floor.position else entry_hash(objects, floor.position)
    if present is not None and present != floor.entry_hash:
        return Archived(wrong="is another one in the archive than the ledger says")
    if begins.position >= floor.position:
        # A new archive, or one whose entries of that time were removed by retention.
        return Archived(unproven="which begins behind them")
    if present is None:
        return Archived(wrong=f"is said to have left for the archive, and {objects.root} does not have it")
    return Archived()


def _is_the_servers(session: CommandContext, node_key_id: UUID) -> bool:
    """Whether this machine's data directory belongs to the server that was asked."""
    from angelia.envelope.ids import KeyType, key_id
    from angelia.keys.node_key import public_key_in

    local = public_key_in(session.settings.data_dir)
    return local is not None and key_id(KeyType.ED25519, local) == node_key_id


def _unread(why: str) -> Archived:
    return Archived(unproven=f"which was not read: {why}")
