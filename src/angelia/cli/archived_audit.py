"""Checks in the archive that it has the audit entries that left the ledger: the ledger only claims so."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from msgspec.structs import replace

from angelia.cli.command_context import CommandContext
from angelia.errors import AngeliaError

if TYPE_CHECKING:
    from uuid import UUID

    from angelia.audit.model import Floor, Verdict
    from angelia.stores.objects import Objects

_NEEDED = ("pyarrow", "deltalake")


def with_archive(
    session: CommandContext, verdict: Verdict, floor: Floor, node_key_id: UUID, lake: str | None
) -> Verdict:
    """The verdict, after the last entry that left the ledger was compared with the archive's."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return _unread(verdict, f"{missing[0]} is not installed here")
    if lake is None and session.settings.lake is None and not _is_the_servers(session, node_key_id):
        return _unread(verdict, "it lies with the server; --lake names it")
    from deltalake.exceptions import DeltaError
    from pyarrow.lib import ArrowException

    from angelia.cli.pipeline_environment import PipelineFlags

    try:
        return _compared(verdict, PipelineFlags(lake=lake).archive(session.settings), floor)
    except AngeliaError as error:
        return _unread(verdict, error.message)
    except (DeltaError, ArrowException, OSError) as error:
        return _unread(verdict, str(error).partition("\n")[0])


def _compared(verdict: Verdict, objects: Objects, floor: Floor) -> Verdict:
    from angelia.audit.model import Fault
    from angelia.pipeline.lake.audit_chain import archive_floor, entry_hash

    begins = archive_floor(objects)
    present = begins.entry_hash if begins.position == floor.position else entry_hash(objects, floor.position)
    if present == floor.entry_hash and begins.position < floor.position:
        return verdict
    if present is not None and present != floor.entry_hash:
        wrong = "is another one in the archive than the ledger says"
    elif begins.position >= floor.position:
        # A new archive, or one whose entries of that time were removed by retention.
        return replace(verdict, unproven="which begins behind them")
    else:
        wrong = f"is said to have left for the archive, and {objects.root} does not have it"
    fault = Fault(position=verdict.archived, event_id=None, what=wrong)
    return replace(verdict, broken=[*verdict.broken, fault])


def _is_the_servers(session: CommandContext, node_key_id: UUID) -> bool:
    """Whether this machine's data directory belongs to the server that was asked."""
    from angelia.envelope.ids import KeyType, key_id
    from angelia.keys.node_key import public_key_in

    local = public_key_in(session.settings.data_dir)
    return local is not None and key_id(KeyType.ED25519, local) == node_key_id


def _unread(verdict: Verdict, why: str) -> Verdict:
    return replace(verdict, unproven=f"which was not read: {why}")
