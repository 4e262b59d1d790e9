"""Who the admins of a group are is the signed word of its owner, whatever others make of it."""

from __future__ import annotations

import msgspec
import pytest

from angelia.errors import Conflict
from angelia.grouplog.model.admin_grants import MAX_ADMINS, MAX_KEYS, AdminGrant, granted
from grouplog.open_logs import Key

GROUP = b"g" * 32
OWNER, ADMIN = b"owner id", b"admin id"
KEYS = [Key(b"owner %d" % number) for number in range(MAX_KEYS + 3)]
ADMINS = Key(b"admin")
FIRST_KEY = KEYS[0].public


def sign(public_key: bytes, message: bytes) -> bytes:
    return next(one for one in (*KEYS, ADMINS) if one.public == public_key).sign(message)


def made(before: AdminGrant | None, *admins: tuple[bytes, bytes], key: int = 0) -> AdminGrant:
    return granted(GROUP, before, ((OWNER, KEYS[key].public), *admins), FIRST_KEY, sign)


FIRST = made(None)
SECOND = made(FIRST, (ADMIN, ADMINS.public))


def test_a_grant_holds_by_the_first_key_of_its_owner() -> None:
    assert [one.holds(GROUP, FIRST_KEY) for one in (FIRST, SECOND)] == [True, True]
    assert (FIRST.generation, SECOND.generation, SECOND.owner) == (1, 2, OWNER)
    assert SECOND.key_of(ADMIN) == ADMINS.public
    assert SECOND.key_of(b"stranger") is None


def test_a_grant_holds_in_its_own_group_and_for_its_own_owner_alone() -> None:
    assert not SECOND.holds(b"h" * 32, FIRST_KEY)
    assert not SECOND.holds(GROUP, ADMINS.public)


def test_a_grant_with_anything_changed_does_not_hold() -> None:
    rotated = made(SECOND, (ADMIN, ADMINS.public), key=1)
    for changes in (
        {"generation": 9},
        {"admins": rotated.admins[:1]},
        {"admins": (*rotated.admins, (b"mallorys", ADMINS.public))},
        {"keys": ()},
        {"keys": ((KEYS[2].public, rotated.keys[0][1]),)},
        {"signature": SECOND.signature},
    ):
        assert not msgspec.structs.replace(rotated, **changes).holds(GROUP, FIRST_KEY)  # type: ignore[arg-type]
    assert rotated.holds(GROUP, FIRST_KEY)


def test_an_owner_with_a_new_key_is_the_same_one_also_for_members_that_missed_some() -> None:
    grant = FIRST
    for number in range(1, 6):
        grant = made(grant, key=number)
    assert grant.holds(GROUP, FIRST_KEY)
    assert grant.key_of(OWNER) == KEYS[5].public
    assert len(grant.keys) == 5
    assert len(made(grant, (ADMIN, ADMINS.public), key=5).keys) == 5


def test_an_admin_cannot_grant() -> None:
    forged = granted(GROUP, SECOND, [(ADMIN, ADMINS.public)], FIRST_KEY, lambda key, message: ADMINS.sign(message))
    assert not forged.holds(GROUP, FIRST_KEY)
    in_its_name = granted(
        GROUP, SECOND, [(OWNER, KEYS[0].public)], FIRST_KEY, lambda key, message: ADMINS.sign(message)
    )
    assert not in_its_name.holds(GROUP, FIRST_KEY)


def test_admins_and_keys_are_bounded() -> None:
    with pytest.raises(Conflict):
        made(FIRST, *((b"%08d" % number, ADMINS.public) for number in range(MAX_ADMINS)))
    grant = FIRST
    for number in range(1, MAX_KEYS + 1):
        grant = made(grant, key=number)
    assert grant.holds(GROUP, FIRST_KEY)
    with pytest.raises(Conflict):
        made(grant, key=MAX_KEYS + 1)
