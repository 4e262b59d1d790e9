"""Reads the messages of an AICQ server from its Redis: one sorted set a room and one an inbox, by time."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from typing import cast
from uuid import UUID

import redis
from redis.exceptions import RedisError

from angelia.errors import InvalidArgument, Unavailable
from angelia.pipeline.aicq.database import MOST_ROWS
from angelia.pipeline.aicq.rows import uuid_of

ROOM, INBOX = ("room:", ":messages"), ("dm:", ":inbox")
_SECONDS = 10
Scored = tuple[bytes, float]


class AicqRedis:
    """The sorted sets of an AICQ server."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def keys(self, kind: tuple[str, str]) -> Mapping[UUID, list[str]]:
        """The keys of rooms or inboxes by their ids: more than one where requests spelt an id in several ways."""
        found = defaultdict[UUID, list[str]](list)
        with _wrapped():
            for raw in self._client.scan_iter(match="*".join(kind), count=1_000, _type="zset"):
                key = cast(bytes, raw).decode("utf-8", "replace")
                try:
                    found[uuid_of(key.removeprefix(kind[0]).removesuffix(kind[1]))].append(key)
                except InvalidArgument:
                    continue  # not of AICQ
        return found

    def count_until(self, keys: Sequence[str], at_ms: int) -> int:
        """How many messages are of this time or before."""
        with _wrapped():
            return sum(int(self._client.zcount(key, "-inf", at_ms)) for key in keys)

    def newest(self, key: str, count: int) -> int:
        """The time from which on a set has at most so many messages, or a few more that share it."""
        with _wrapped():
            found = cast(list[Scored], self._client.zrange(key, -count, -count, withscores=True))
        return int(found[0][1]) if found else 0

    def batches(self, keys: Sequence[str], after_ms: int) -> Iterator[list[bytes]]:
        """The messages after a time, the oldest first."""
        merged = heapq.merge(*(self._after(key, after_ms) for key in keys), key=lambda one: one[1])
        while batch := [member for member, _ in islice(merged, MOST_ROWS)]:
            yield batch

    def _after(self, key: str, after_ms: int) -> Iterator[Scored]:
        """Goes on at the time of the last message, not at its place: places change when a message is deleted."""
        begin, seen = f"({after_ms}", set[bytes]()
        while True:
            with _wrapped():
                page = cast(
                    list[Scored],
                    self._client.zrangebyscore(key, begin, "+inf", 0, MOST_ROWS + len(seen), withscores=True),
                )
            fresh = [one for one in page if one[0] not in seen]
            yield from fresh
            if not fresh:
                return
            last = fresh[-1][1]
            begin, seen = repr(last), {member for member, score in page if score == last}


@contextmanager
def opened(url: str) -> Iterator[AicqRedis]:
    """The Redis at a URL; raises Unavailable if it does not answer or its keys cannot be read."""
    try:
        client = redis.Redis.from_url(url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS)
    except ValueError as error:
        raise InvalidArgument("--redis is no URL of a Redis", hint="as in redis://host:6379") from error
    with closing(client):
        with _wrapped():
            client.ping()
            client.scan(count=1)
        yield AicqRedis(client)


@contextmanager
def _wrapped() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        raise Unavailable(
            f"AICQ's Redis does not answer: {error}", hint="is it running, and is the URL right?"
        ) from error
