"""Rosters of channels: the owner's signed word on who is in, that a relay can neither change nor take back."""

from __future__ import annotations

import struct
from dataclasses import replace
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from angelia.envelope.refusals import Malformed, SignatureFailed
from angelia.envelope.rosters import (
    FIRST_PREVIOUS,
    MOST_MEMBERS,
    POLICIES,
    Member,
    Roster,
    RosterDocument,
    UntrustedRoster,
    check_follows,
    check_roster,
    decode_roster,
    encode_roster,
    parse_roster,
    roster_document,
    sign_roster,
)
from angelia.envelope.signing import Purpose, Signatures, object_holds
from envelope.samples import ALICE, MALLORY, NOW, handles

CHANNEL = UUID("c9a3a2e0-1234-4678-9abc-def012345678")
BOB, CAROL = (
    Member("bob", may_publish=False, may_subscribe=True),
    Member("carol", may_publish=True, may_subscribe=False),
)


def made(*members: Member, **other: object) -> Roster:
    values: dict[str, object] = {
        "channel_id": CHANNEL,
        "owner_nhi": "alice",
        "channel_name": "news",
        "policy": "allowlist",
        "members": members,
        "issued_at": NOW,
        **other,
    }
    return sign_roster(ALICE, **values)  # type: ignore[arg-type]


SIGNED = made(BOB, CAROL)


def after(before: Roster, *members: Member, **other: object) -> Roster:
    return made(*members, **{"version": before.version + 1, "prev_roster_hash": before.hash, **other})


def counted(content: bytes) -> bytes:
    return struct.pack(">H", len(content)) + content


def test_the_signed_bytes_are_those_of_the_documents() -> None:
    expected = b"\x01" + CHANNEL.bytes + counted(b"alice") + counted(b"news") + struct.pack(">BQQQ", 4, 1, 1, NOW)
    expected += ALICE.public.signer_id.bytes + bytes(32) + struct.pack(">H", 2)
    expected += counted(b"bob") + b"\x02" + counted(b"carol") + b"\x01"
    assert SIGNED.signed_bytes() == expected
    assert object_holds(ALICE.public, Purpose.ROSTER, expected, SIGNED.signatures)
    assert not object_holds(ALICE.public, Purpose.BUNDLE, expected, SIGNED.signatures)


@pytest.mark.parametrize(
    "changed",
    [
        replace(SIGNED, channel_id=UUID(int=5)),
        replace(SIGNED, owner_nhi="alicia"),
        replace(SIGNED, channel_name="newt"),
        replace(SIGNED, policy="open"),
        replace(SIGNED, version=2, prev_roster_hash=bytes([1]) * 32),
        replace(SIGNED, issued_at=NOW + 1),
        replace(after(SIGNED, BOB, CAROL), keys_since=1),
        replace(SIGNED, signer_id=MALLORY.public.signer_id),
        replace(SIGNED, members=(BOB,)),
        replace(SIGNED, members=(BOB, CAROL, Member("mallory", may_publish=True, may_subscribe=True))),
        replace(SIGNED, members=(replace(BOB, may_publish=True), CAROL)),
        replace(SIGNED, signatures=Signatures(SIGNED.signatures.ed25519, b"")),
        replace(SIGNED, signatures=Signatures(b"", SIGNED.signatures.ml_dsa)),
        sign_roster(MALLORY, channel_id=CHANNEL, owner_nhi="alice", channel_name="news", policy="allowlist",
                    members=(BOB, CAROL), issued_at=NOW),
    ],
)  # fmt: skip
def test_no_field_can_be_changed_and_only_the_owner_can_sign(changed: Roster) -> None:
    check_roster(SIGNED, ALICE.public)
    with pytest.raises(SignatureFailed):
        check_roster(changed, ALICE.public)


@pytest.mark.parametrize(
    "wrong",
    [
        {"owner_nhi": "Alice"},
        {"channel_name": "News"},
        {"policy": "everybody"},
        {"version": 0},
        {"version": 1 << 53},
        {"version": 2},  # that names no roster before it
        {"prev_roster_hash": bytes([1]) * 32},
        {"prev_roster_hash": b""},
        {"keys_since": 0},
        {"keys_since": 2},
        {"issued_at": 0},
        {"issued_at": 1 << 53},
        {"members": (CAROL, BOB)},
        {"members": (BOB, BOB)},
        {"members": (Member("alice", may_publish=True, may_subscribe=True),)},
        {"members": (Member("Bob", may_publish=True, may_subscribe=True),)},
        {"members": (Member("b" * 256, may_publish=True, may_subscribe=True),)},
    ],
)
def test_what_is_not_well_formed_is_no_roster(wrong: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        check_roster(replace(SIGNED, **wrong), ALICE.public)  # type: ignore[arg-type]
    document = msgspec.to_builtins(roster_document(SIGNED))
    shown = {name: value for name, value in wrong.items() if name not in ("members", "prev_roster_hash")}
    if shown:
        with pytest.raises(Malformed):
            parse_roster(msgspec.convert(document | shown, RosterDocument))


def test_a_roster_has_ten_thousand_members_and_no_more() -> None:
    many = [Member(f"agent-{number:05}", may_publish=False, may_subscribe=True) for number in range(MOST_MEMBERS + 1)]
    whole = made(*many[:MOST_MEMBERS])
    check_roster(decode_roster(encode_roster(whole)), ALICE.public)
    assert whole.lets_hold_key("agent-09999")
    assert not whole.lets_hold_key("agent-10000")
    with pytest.raises(Malformed, match="at most 10,000 members"):
        made(*many)


members = st.builds(Member, handles, may_publish=st.booleans(), may_subscribe=st.booleans())


@settings(max_examples=30)
@given(
    st.lists(members, max_size=12, unique_by=lambda one: one.nhi), st.sampled_from(POLICIES), st.integers(2, 2**53 - 1)
)
def test_both_forms_give_back_the_same_roster(listed: list[Member], policy: str, version: int) -> None:
    roster = made(*listed, policy=policy, version=version, prev_roster_hash=bytes([7]) * 32)
    assert decode_roster(encode_roster(roster)) == roster
    text = msgspec.json.encode(roster_document(roster))
    assert parse_roster(msgspec.json.decode(text, type=RosterDocument)) == roster
    for one in listed:
        assert roster.member(one.nhi) == (None if one.nhi == "alice" else one)


@settings(max_examples=300)
@given(st.integers(0, len(encode_roster(SIGNED)) * 8 - 1))
def test_a_bit_that_flips_is_noticed(bit: int) -> None:
    content = bytearray(encode_roster(SIGNED))
    content[bit // 8] ^= 1 << bit % 8
    with pytest.raises((Malformed, SignatureFailed)):
        check_roster(decode_roster(bytes(content)), ALICE.public)


@given(
    st.binary(max_size=200) | st.integers(0, len(encode_roster(SIGNED)) - 1).map(lambda at: encode_roster(SIGNED)[:at])
)
def test_other_bytes_are_no_roster(content: bytes) -> None:
    with pytest.raises(Malformed):
        decode_roster(content)


@pytest.mark.parametrize(
    ("policy", "publish", "hold"),
    [
        ("allowlist", {"alice", "carol"}, {"alice", "bob", "carol"}),
        ("private", {"alice"}, {"alice"}),
        ("open", {"alice", "bob", "carol", "mallory"}, {"alice", "bob", "carol", "mallory"}),
        ("authz_required", {"alice", "bob", "carol", "mallory"}, {"alice", "bob", "carol", "mallory"}),
    ],
)
def test_who_may_is_the_policys_to_say(policy: str, publish: set[str], hold: set[str]) -> None:
    roster = made(BOB, CAROL, policy=policy)
    agents = {"alice", "bob", "carol", "mallory"}
    assert {one for one in agents if roster.lets_publish(one)} == publish
    assert {one for one in agents if roster.lets_hold_key(one)} == hold


def test_a_roster_is_narrowed_by_every_right_that_is_lost_and_by_another_policy() -> None:
    dave = Member("dave", may_publish=True, may_subscribe=True)
    both = made(dave)
    assert not SIGNED.is_narrowed_by("allowlist", [BOB, CAROL])
    assert not SIGNED.is_narrowed_by("allowlist", [BOB, CAROL, dave])
    assert SIGNED.is_narrowed_by("allowlist", [BOB, replace(CAROL, may_publish=False, may_subscribe=True)])
    assert SIGNED.is_narrowed_by("allowlist", [BOB])
    assert SIGNED.is_narrowed_by("open", [BOB, CAROL])
    assert both.is_narrowed_by("allowlist", [replace(dave, may_subscribe=False)])
    assert not made(BOB, policy="open").is_narrowed_by("open", [])  # there its members decide nothing


def test_a_version_never_goes_back_and_is_one_roster() -> None:
    second = after(SIGNED, BOB)
    third = after(second, BOB, CAROL)
    for pinned, next_ in [(SIGNED, SIGNED), (SIGNED, second), (second, third), (SIGNED, third)]:
        check_follows(next_, pinned)
    unchained = made(CAROL, version=2, prev_roster_hash=bytes([1]) * 32)
    elsewhere = made(BOB, channel_id=UUID(int=9), version=2, prev_roster_hash=SIGNED.hash)
    renamed = after(SIGNED, BOB, channel_name="other")
    for pinned, wrong in [
        (second, SIGNED), (second, unchained), (SIGNED, unchained), (SIGNED, made(BOB)), (SIGNED, elsewhere),
        (SIGNED, renamed),
    ]:  # fmt: skip
        with pytest.raises(UntrustedRoster):
            check_follows(wrong, pinned)


def test_the_first_roster_follows_none() -> None:
    assert SIGNED.prev_roster_hash == FIRST_PREVIOUS
    assert len(SIGNED.hash) == 32
