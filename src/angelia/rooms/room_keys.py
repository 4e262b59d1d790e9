"""The keys of private rooms: kept as a slow salted hash, verified in a thread, remembered for a minute."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import time
from datetime import datetime
from uuid import UUID

import bcrypt
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from angelia.errors import Denied, InvalidArgument
from angelia.rooms.hot_store import Window
from angelia.rooms.model import KEY_BYTES, Room

_KEPT_SECONDS = 60.0
_MOST_KEPT = 10_000
_AT_ONCE = 2  # a hash takes 50 ms of a core, and 16 MiB
_SALT_BYTES = 16
_MOST_OF_BCRYPT = 72  # bytes: the rooms that come from AICQ have no longer keys


class RoomKeys:
    """Makes and verifies the keys of private rooms."""

    def __init__(self, wrong: Window) -> None:
        self._wrong = wrong
        self._verified: dict[tuple[UUID, bytes], float] = {}
        self._verifying: dict[tuple[UUID, bytes, str], asyncio.Task[bool]] = {}
        self._hashing = asyncio.Semaphore(_AT_ONCE)

    async def make(self, key: str) -> tuple[bytes, bytes]:
        """The salt and the hash of the key of a new room."""
        raw = key.encode()
        if len(raw) < KEY_BYTES.start:
            raise InvalidArgument("private rooms require key (min 16 chars)")
        if len(raw) >= KEY_BYTES.stop:
            raise InvalidArgument("a room key has at most 256 bytes")
        salt = os.urandom(_SALT_BYTES)
        return salt, await self._hash(salt, raw)

    async def check(self, room: Room, key: str | None, guesser: str, now: datetime) -> None:
        """Refuses callers of a private room that do not have its key. Wrong keys are limited by room and `guesser`, the
        subject of the caller's address."""
        if room.key_hash is None:
            return
        if not key:
            raise Denied("room key required for private rooms", hint="send it as X-AICQ-Room-Key")
        raw = key.encode("latin-1")  # a header's bytes
        digest = hashlib.sha256(raw).digest()
        if self._verified.get((room.room_id, digest), 0.0) > time.monotonic():
            return
        # A key is counted before it is hashed, so that wrong keys sent at once are limited too. Callers that send the
        # same one at once share one hash.
        asked = (room.room_id, digest, guesser)
        verifying = self._verifying.get(asked)
        if verifying is None:
            verifying = self._verifying[asked] = asyncio.create_task(self._verify(room, raw, digest, guesser, now))
            verifying.add_done_callback(lambda _: self._verifying.pop(asked))
        if not await asyncio.shield(verifying):
            raise Denied("invalid room key")

    async def _verify(self, room: Room, key: bytes, digest: bytes, guesser: str, now: datetime) -> bool:
        guesses = f"{guesser} {room.room_id}"
        guess = await self._wrong.reserve(guesses, 1, now)
        if not await self._matches(room, key):
            return False
        await self._wrong.release(guesses, guess)
        if len(self._verified) >= _MOST_KEPT:
            self._verified.clear()
        self._verified[room.room_id, digest] = time.monotonic() + _KEPT_SECONDS
        return True

    async def _matches(self, room: Room, key: bytes) -> bool:
        assert room.key_hash is not None, "a private room has one"
        if room.key_salt is not None:
            return len(key) < KEY_BYTES.stop and hmac.compare_digest(
                await self._hash(room.key_salt, key), room.key_hash
            )
        if len(key) > _MOST_OF_BCRYPT:
            return False
        async with self._hashing:
            return await asyncio.to_thread(bcrypt.checkpw, key, room.key_hash)

    async def _hash(self, salt: bytes, key: bytes) -> bytes:
        async with self._hashing:
            return await asyncio.to_thread(Scrypt(salt=salt, length=32, n=2**14, r=8, p=1).derive, key)
