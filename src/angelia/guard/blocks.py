"""Blocked addresses: kept in the ledger, copied to the hot tier, and remembered in each process, which others tell of
changes."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

import msgspec
import structlog

from angelia.api import Caller, subject_of
from angelia.audit import service as audit
from angelia.errors import InvalidArgument, NotFound, Unavailable
from angelia.guard import store
from angelia.guard.model import Block, parse_address
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake, wake_topic

TOPIC = wake_topic("guard", "blocks")
_REMEMBERED = 100_000
log = structlog.get_logger(__name__)


class BlockNews(msgspec.Struct, frozen=True):
    """What a process tells the others: an address is blocked until then (None: for ever), or no longer."""

    address: str
    blocked: bool
    expires_at: datetime | None = None


class AddressBlocks:
    """The addresses that are refused on every route. A tick calls `refresh`, so blocks outlast a restart of the hot
    tier."""

    def __init__(self, ledger: Ledger, hot: HotTier, wake: Wake) -> None:
        self._ledger = ledger
        self._hot = hot
        self._wake = wake
        self._recorded: dict[str, datetime | None] = {}  # as the ledger has them, by subject
        self._heard: dict[str, datetime | None] = {}  # since the ledger was read
        self._unrecorded: dict[str, Block] = {}  # made by this process while the ledger was away
        self._changes = 0
        self._missed = False  # whether the end of a block may have been missed
        wake.follow(TOPIC, self)

    def includes(self, subject: str, now: datetime) -> bool:
        for known in (self._heard, self._recorded):
            if known and subject in known:
                until = known[subject]
                if until is None or until > now:
                    return True
        return False

    async def refresh(self, now: datetime) -> bool:
        """Reads the blocks of the ledger. Returns whether to read again, because some changed meanwhile."""
        with suppress(Unavailable):  # a full disk, from which blocks can be read
            for block in list(self._unrecorded.values()):
                await self._write(block)
        changes, missed = self._changes, self._missed or self._wake.heard_since(TOPIC) is None
        self._missed = False  # what is missed while the ledger is read is for the next time
        try:
            async with self._ledger.reading() as tx:
                found, total = await store.blocks(tx, now, None, _REMEMBERED)
        except BaseException:
            self._missed = True
            raise
        if self._changes != changes:
            self._missed = self._missed or missed
            return True
        if total > len(found):
            log.warning("more addresses are blocked than a web process remembers", blocked=total, remembered=len(found))
        self._recorded = {block.address: block.expires_at for block in found}
        kept = self._unrecorded.keys() if missed else self._heard.keys() - self._recorded.keys()
        heard = {subject: self._heard[subject] for subject in kept if subject in self._heard}
        self._heard = {subject: until for subject, until in heard.items() if until is None or until > now}
        return False

    def ring(self, message: bytes = b"") -> None:
        """A process tells of a block, or of its end. An empty message says that something may be missing: then the
        ledger decides at the next refresh, and meanwhile the hot tier is asked about each address."""
        if not message:
            self._missed = True
            return
        self._changes += 1
        news = msgspec.json.decode(message, type=BlockNews)
        if news.blocked:
            self._heard[news.address] = news.expires_at
            return
        for known in (self._heard, self._recorded, self._unrecorded):
            known.pop(news.address, None)

    async def block(self, caller: Caller, address: str, reason: str, life: timedelta | None, now: datetime) -> Block:
        """Blocks an address for an operator; without an end, until it is unblocked."""
        if len(reason) > 200:
            raise InvalidArgument("a reason has at most 200 characters")
        parsed = parse_address(address)
        if parsed.is_loopback:
            raise InvalidArgument("this machine itself cannot be blocked", hint="its operator could not lift the block")
        block = _block(subject_of(parsed), reason or "by an operator", caller.known_as, life, now)
        await self._write(block)
        try:
            await store.set_block(self._hot, block.address, int(life.total_seconds() * 1000) if life else None)
        except Unavailable:
            log.warning("a block reaches the other processes at their next refresh", address=block.address)
        await self._wake.tell(TOPIC, _news(block))
        return block

    def publication(self, block: Block) -> store.Publication:
        """What the script that makes a block tells the other processes."""
        return TOPIC, self._wake.tagged(_news(block))

    async def record_automatic(self, block: Block) -> None:
        """Records a block that the hot tier has just made and told the other processes of."""
        self.ring(_news(block))
        try:
            await self._write(block)
        except Unavailable:
            self._unrecorded[block.address] = block
            log.warning("an automatic block is not in the ledger yet", address=block.address)

    async def unblock(self, caller: Caller, address: str, now: datetime) -> None:
        subject = subject_of(parse_address(address))
        async with self._ledger.transaction() as tx:
            lifted = await store.unblock(tx, subject)
            if lifted:
                event = audit.event("address_unblocked", now, actor=caller.known_as, object=subject)
                await audit.record(tx, [event])
        try:
            lifted |= await store.clear_block(self._hot, subject)
        except Unavailable:
            log.warning("the hot tier was away; it forgets this block by itself", address=subject)
        await self._wake.tell(TOPIC, msgspec.json.encode(BlockNews(subject, blocked=False)))
        if not lifted:
            raise NotFound(f"{subject} is not blocked", hint="angelia guard blocks")

    async def list_blocks(self, now: datetime, after: str | None, limit: int) -> tuple[list[Block], int]:
        """Returns blocks in order of address, after the given one, and how many there are in all."""
        async with self._ledger.reading() as tx:
            return await store.blocks(tx, now, subject_of(parse_address(after)) if after else None, limit)

    async def _write(self, block: Block) -> None:
        async with self._ledger.transaction() as tx:
            await store.block(tx, block)
            seconds = int((block.expires_at - block.blocked_at).total_seconds()) if block.expires_at else None
            detail = {"reason": block.reason, "seconds": seconds}
            event = audit.event(
                "address_blocked", block.blocked_at, actor=block.blocked_by, object=block.address, detail=detail
            )
            await audit.record(tx, [event])
        self._unrecorded.pop(block.address, None)


def automatic_block(subject: str, now: datetime) -> Block:
    """The block of an address that was refused too often."""
    return _block(subject, "too many refused requests", "guard", timedelta(milliseconds=store.BLOCK_MS), now)


def _block(subject: str, reason: str, by: str, life: timedelta | None, now: datetime) -> Block:
    ends = now + life if life else None
    return Block(address=subject, reason=reason, blocked_by=by, blocked_at=now, expires_at=ends)


def _news(block: Block) -> bytes:
    return msgspec.json.encode(BlockNews(block.address, blocked=True, expires_at=block.expires_at))
