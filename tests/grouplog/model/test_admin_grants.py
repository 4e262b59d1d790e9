"""Who the admins of a group are is the signed word of its owner, whatever others make of it."""

from __future__ import annotations

import msgspec
import pytest

from angelia.errors import Conflict
from angelia.grouplog.model.admin_grants import MAX_ADMINS, Admin, AdminGrant, granted
from angelia.grouplog.model.ids import MAX_SEQ
from grouplog.open_logs import Key

GROUP = b"g" * 32
OWNERS, NEW, ADMINS = Key(b"owner"), Key(b"owner again"), Key(b"admin")
OWNER = Admin(b"owner id", "ann", OWNERS.public)
AGAIN = Admin(b"owner id", "ann", NEW.public)
BEN = Admin(b"admin id", "ben", ADMINS.public)
FIRST = granted(GROUP, None, (OWNER,), OWNERS.sign)
SECOND = granted(GROUP, FIRST, (OWNER, BEN), OWNERS.sign)


def test_a_grant_holds_by_the_key_that_it_names_and_in_its_group() -> None:
    assert [one.holds(GROUP) for one in (FIRST, SECOND)] == [True, True]
    assert (FIRST.generation, SECOND.generation, SECOND.owner) == (1, 2, OWNER)
    assert (SECOND.admin(b"admin id"), SECOND.admin(b"stranger")) == (BEN, None)
    assert not SECOND.holds(b"h" * 32)


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": 9},
        {"admins": (OWNER,)},
        {"admins": (OWNER, BEN, Admin(b"mallorys", "mallory", ADMINS.public))},
        {"admins": (OWNER, Admin(b"admin id", "mallory", ADMINS.public))},
        {"admins": (BEN, OWNER)},
        {"admins": (AGAIN, BEN)},
        {"signature": FIRST.signature},
    ],
)
def test_a_grant_with_anything_changed_does_not_hold(changes: dict[str, object]) -> None:
    assert not msgspec.structs.replace(SECOND, **changes).holds(GROUP)  # type: ignore[arg-type]


def test_an_admin_cannot_grant_in_the_name_of_the_owner() -> None:
    assert not granted(GROUP, SECOND, (OWNER,), ADMINS.sign).holds(GROUP)


def test_generations_begin_anew_under_a_new_key_of_the_owner() -> None:
    used_up = msgspec.structs.replace(SECOND, generation=MAX_SEQ)
    with pytest.raises(Conflict):
        granted(GROUP, used_up, (OWNER,), OWNERS.sign)
    again = granted(GROUP, used_up, (AGAIN, BEN), NEW.sign)
    assert (again.generation, again.holds(GROUP)) == (1, True)


@pytest.mark.parametrize(
    "admins",
    [(OWNER, BEN, BEN), (OWNER, Admin(b"owner id", "ben", BEN.public_key)), (OWNER, Admin(b"x" * 8, "ann", b""))],
)
def test_a_grant_that_names_an_agent_twice_is_not_consistent(admins: tuple[Admin, ...]) -> None:
    assert not AdminGrant(1, admins, bytes(64)).is_consistent
    assert SECOND.is_consistent


def test_admins_are_bounded() -> None:
    many = tuple(Admin(b"%08d" % number, f"agent-{number}", ADMINS.public) for number in range(MAX_ADMINS))
    with pytest.raises(Conflict):
        granted(GROUP, FIRST, (OWNER, *many), OWNERS.sign)
