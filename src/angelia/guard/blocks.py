"""Blocked addresses: kept in the ledger, copied to the hot tier for other processes, and cached in each process."""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog

from angelia.api import Address, Caller
from angelia.audit import service as audit
from angelia.errors import InvalidArgument, NotFound, Unavailable
from angelia.guard import store
from angelia.guard.model import Block, parse_address, subject_of
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier

_REMEMBERED = 100_000
log = structlog.get_logger(__name__)


class AddressBlocks:
    """The addresses that are refused on every route. A tick calls `refresh`, so blocks outlast a restart of the hot
    tier."""

    def __init__(self, ledger: Ledger, hot: HotTier) -> None:
        self._ledger = ledger
        self._hot = hot
        self._remembered: dict[str, datetime | None] = {}

    def includes(self, address: Address, now: datetime) -> bool:
        if not self._remembered:
            return False
        until = self._remembered.get(subject_of(address), now)
        return until is None or until > now

    async def refresh(self, now: datetime) -> None:
        async with self._ledger.reading() as tx:
            found, _ = await store.blocks(tx, now, None, _REMEMBERED)
        self._remembered = {block.address: block.expires_at for block in found}

    async def block(self, caller: Caller, address: str, reason: str, life: timedelta | None, now: datetime) -> Block:
        """Blocks an address for an operator; without an end, until it is unblocked."""
        if len(reason) > 200:
            raise InvalidArgument("a reason has at most 200 characters")
        parsed = parse_address(address)
        if parsed.is_loopback:
            raise InvalidArgument("this machine itself cannot be blocked", hint="its operator could not lift the block")
        return await self._record(subject_of(parsed), reason or "by an operator", caller.known_as, life, now)

    async def record_automatic(self, address: Address, now: datetime, life: timedelta) -> None:
        """Records in the ledger a block that the hot tier has just made."""
        try:
            await self._record(subject_of(address), "too many refused requests", "guard", life, now)
        except Unavailable:
            log.warning("an automatic block is not in the ledger yet", address=str(address))

    async def unblock(self, caller: Caller, address: str, now: datetime) -> None:
        subject = subject_of(parse_address(address))
        async with self._ledger.transaction() as tx:
            lifted = await store.unblock(tx, subject)
            if lifted:
                event = audit.event("address_unblocked", now, actor=caller.known_as, object=subject)
                await audit.record(tx, [event])
        self._remembered.pop(subject, None)
        try:
            lifted |= await store.clear_block(self._hot, subject)
        except Unavailable:
            log.warning("the hot tier was away; it forgets this block by itself", address=subject)
        if not lifted:
            raise NotFound(f"{subject} is not blocked", hint="angelia guard blocks")

    async def list_blocks(self, now: datetime, after: str | None, limit: int) -> tuple[list[Block], int]:
        """Returns blocks in order of address, after the given one, and how many there are in all."""
        async with self._ledger.reading() as tx:
            return await store.blocks(tx, now, subject_of(parse_address(after)) if after else None, limit)

    async def _record(self, subject: str, reason: str, by: str, life: timedelta | None, now: datetime) -> Block:
        ends = now + life if life else None
        block = Block(address=subject, reason=reason, blocked_by=by, blocked_at=now, expires_at=ends)
        async with self._ledger.transaction() as tx:
            await store.block(tx, block)
            detail = {"reason": reason, "seconds": int(life.total_seconds()) if life else None}
            event = audit.event("address_blocked", now, actor=by, object=block.address, detail=detail)
            await audit.record(tx, [event])
        self._remembered[block.address] = block.expires_at
        try:
            await store.set_block(self._hot, subject, int(life.total_seconds() * 1000) if life else None)
        except Unavailable:
            log.warning("a block reaches the other processes at their next refresh", address=block.address)
        return block
