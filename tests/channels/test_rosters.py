"""The roster of a channel on the server: stored as its owner signed it, together with the list that it means."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest

from angelia.envelope.rosters import Member as Listed
from angelia.envelope.rosters import RosterDocument, parse_roster, roster_document
from channels.members import Member, code
from keyholder import now_ms

READS = Listed("bob", may_publish=False, may_subscribe=True)
WRITES = Listed("carol", may_publish=True, may_subscribe=False)


async def served(member: Member, channel: UUID) -> RosterDocument:
    return msgspec.convert(await member.call("GET", f"/v1/channels/{channel}/roster"), RosterDocument)


async def listed(owner: Member, channel: UUID) -> list[tuple[str, bool, bool]]:
    page = await owner.call("GET", f"/v1/channels/{channel}/allowlist")
    return [(one["nhi"], one["may_publish"], one["may_subscribe"]) for one in page["allowlist"]]


async def test_a_channel_is_made_with_its_roster_in_one_request(alice: Member, bob: Member, carol: Member) -> None:
    roster = await alice.makes_signed(READS, WRITES)
    channel = roster.channel_id
    assert parse_roster(await served(bob, channel)) == roster
    assert (await alice.shows(channel))["roster_version"] == 1
    assert await listed(alice, channel) == [("bob", False, True), ("carol", True, False)]
    assert (await bob.subscribes(channel))["status"] == "active"
    assert (await bob.reads(channel))["roster_version"] == 1


async def test_the_next_roster_changes_the_list_and_the_policy_in_one_step(
    alice: Member, bob: Member, carol: Member
) -> None:
    first = await alice.makes_signed(READS)
    channel = first.channel_id
    key = await alice.rekeys(channel, 1)
    await bob.subscribes(channel)
    second = alice.signs(channel, WRITES, after=first)
    answer = await alice.puts(second)
    shown = answer.json()
    assert (answer.status_code, shown["roster_version"], shown["total_subscribers"]) == (200, 2, 0)
    assert shown["epoch_key_id"] is None  # bob has the key
    assert await listed(alice, channel) == [("carol", True, False)]
    await bob.reads(channel, status=403)
    assert code(await bob.raw("GET", f"/v1/channels/{channel}/roster")) == (404, "not_found")
    assert code(await alice.publishes(alice.seals(channel, key))) == (409, "epoch_stale")
    third = alice.signs(channel, WRITES, after=second, policy="open")
    assert (await alice.puts(third)).json()["policy"] == "open"
    await bob.subscribes(channel)
    assert (await alice.puts(third)).status_code == 200  # again, after a lost answer
    assert (await alice.shows(channel))["roster_version"] == 3


async def test_who_keeps_its_rights_keeps_the_key(alice: Member, bob: Member, carol: Member) -> None:
    first = await alice.makes_signed(READS)
    key = await alice.rekeys(first.channel_id, 1)
    await bob.subscribes(first.channel_id)
    shown = (await alice.puts(alice.signs(first.channel_id, READS, WRITES, after=first))).json()
    assert (shown["total_subscribers"], shown["epoch_key_id"]) == (1, str(key.key_id))


async def test_many_who_lose_their_rights_are_dropped_in_batches(
    alice: Member, bob: Member, carol: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angelia.channels.rosters.BATCH", 1)
    monkeypatch.setattr("angelia.channels.member_removal.BATCH", 1)
    first = await alice.makes_signed(READS, Listed("carol", may_publish=False, may_subscribe=True))
    channel = first.channel_id
    await alice.rekeys(channel, 1)
    for one in (bob, carol):
        await one.subscribes(channel)
    shown = (await alice.puts(alice.signs(channel, after=first))).json()
    assert (shown["total_subscribers"], shown["epoch_key_id"]) == (0, None)


async def test_a_version_is_the_next_one_and_names_the_one_before(alice: Member, bob: Member) -> None:
    first = await alice.makes_signed(READS)
    channel = first.channel_id
    second = alice.signs(channel, after=first)
    assert (await alice.puts(second)).status_code == 200
    for wrong in (
        first,
        alice.signs(channel, READS, after=first),
        alice.signs(channel, READS, after=second, version=4),
        alice.signs(channel, READS, after=second, prev_roster_hash=first.hash),
    ):
        answer = await alice.puts(wrong)
        assert code(answer) == (409, "version_conflict")
        assert answer.json()["roster_version"] == 2
    assert parse_roster(await served(alice, channel)) == second


async def test_only_what_the_owner_signed_for_this_channel_is_stored(alice: Member, bob: Member) -> None:
    first = await alice.makes_signed(READS)
    channel = first.channel_id
    forged = alice.signs(channel, READS, after=first, pair=bob.pair)
    assert code(await alice.puts(forged)) == (404, "key_not_found")  # alice has no such pair
    good = alice.signs(channel, after=first)
    swapped = msgspec.structs.replace(roster_document(good), members=roster_document(first).members)
    answer = await alice.raw("PUT", f"/v1/channels/{channel}/roster", swapped)
    assert answer.json()["code"] == "signature_verification_failed"
    other = alice.signs(uuid4(), after=first)
    answer = await alice.raw("PUT", f"/v1/channels/{channel}/roster", roster_document(other))
    assert code(answer) == (400, "invalid_argument")
    renamed = alice.signs(channel, after=first, channel_name="other")
    assert code(await alice.puts(renamed)) == (400, "invalid_argument")
    assert code(await bob.puts(good)) == (403, "authorization_denied")
    late = alice.signs(channel, after=first, issued_at=now_ms() - 301_000)
    assert (await alice.puts(late)).json()["code"] == "clock_skew"
    assert parse_roster(await served(alice, channel)) == first


async def test_a_roster_names_agents_that_exist_by_their_handles(alice: Member, bob: Member) -> None:
    first = await alice.makes_signed(READS)
    for name in ("nobody", str(bob.id)):
        stranger = Listed(name, may_publish=False, may_subscribe=True)
        assert code(await alice.puts(alice.signs(first.channel_id, stranger, after=first))) == (404, "not_found")
    taken = alice.signs(first.channel_id, READS, channel_name="second")
    document = {"channel_name": "second", "policy": "allowlist", "roster": roster_document(taken)}
    assert code(await alice.raw("POST", "/v1/channels", document)) == (409, "already_exists")


@pytest.mark.parametrize(
    "body", [{"policy": "open"}, {"channel_name": "other"}, {"allowlist_nhis": ["bob"]}], ids=["policy", "name", "list"]
)
async def test_a_channel_is_made_as_its_roster_says(alice: Member, bob: Member, body: dict[str, object]) -> None:
    roster = alice.signs(uuid4(), READS)
    said = {"channel_name": "news", "policy": "allowlist", "roster": roster_document(roster), **body}
    assert code(await alice.raw("POST", "/v1/channels", said)) == (400, "invalid_argument")


async def test_lists_and_policies_are_changed_by_the_next_roster_alone(
    alice: Member, bob: Member, carol: Member
) -> None:
    first = await alice.makes_signed(READS)
    url = f"/v1/channels/{first.channel_id}"
    assert code(await alice.raw("PUT", f"{url}/allowlist/carol", {})) == (409, "conflict")
    assert code(await alice.raw("DELETE", f"{url}/allowlist/bob")) == (409, "conflict")
    assert code(await alice.raw("PATCH", url, {"policy": "open"})) == (409, "conflict")
    assert (await alice.raw("PATCH", url, {"policy": "allowlist", "retention_seconds": 3600})).status_code == 200


async def test_a_channel_of_the_time_before_rosters_gets_one(alice: Member, bob: Member, carol: Member) -> None:
    channel = await alice.makes(policy="allowlist", allowlist_nhis=["bob"])
    assert (await alice.shows(channel))["roster_version"] == 0
    assert code(await bob.raw("GET", f"/v1/channels/{channel}/roster")) == (404, "not_found")
    await alice.allows(channel, "carol")
    first = alice.signs(channel, READS)
    assert (await alice.puts(first)).status_code == 200
    assert await listed(alice, channel) == [("bob", False, True)]
    assert parse_roster(await served(bob, channel)) == first


async def test_rows_that_no_owner_signed_go_with_the_next_roster(
    alice: Member, bob: Member, carol: Member, connection: asyncpg.Connection
) -> None:
    first = await alice.makes_signed(READS)
    await connection.execute(
        "INSERT INTO channel_allowlist (channel_id, nhi, may_publish, added_at) VALUES ($1, 'carol', true, now())",
        first.channel_id,
    )
    await carol.subscribes(first.channel_id)
    shown = (await alice.puts(alice.signs(first.channel_id, READS, after=first))).json()
    assert await listed(alice, first.channel_id) == [("bob", False, True)]
    assert shown["total_subscribers"] == 0


async def test_a_roster_of_ten_thousand_is_stored_and_one_more_is_refused(
    alice: Member, connection: asyncpg.Connection
) -> None:
    await connection.execute(
        "INSERT INTO agents (id, handle, public_key, key_id, name, email, aicq_signatures, registered_at)"
        " SELECT gen_random_uuid(), 'agent-' || lpad(n::text, 5, '0'), sha256(n::text::bytea), gen_random_uuid(), '',"
        " '', false, now() FROM generate_series(0, 10000) AS n"
    )
    many = [Listed(f"agent-{number:05}", may_publish=False, may_subscribe=True) for number in range(10_000)]
    first = await alice.makes_signed(*many)
    assert len((await served(alice, first.channel_id)).members) == 10_000
    second = alice.signs(first.channel_id, *many[1:], after=first)
    assert (await alice.puts(second)).status_code == 200
    document = msgspec.to_builtins(roster_document(alice.signs(first.channel_id, *many, after=second)))
    document["members"].append({"nhi": "agent-10000", "may_publish": False, "may_subscribe": True})
    answer = await alice.raw("PUT", f"/v1/channels/{first.channel_id}/roster", document)
    assert code(answer) == (400, "invalid_argument")


async def test_a_pair_that_was_revoked_signs_no_roster(alice: Member, connection: asyncpg.Connection) -> None:
    first = await alice.makes_signed()
    await connection.execute(
        "UPDATE key_records SET status = 'revoked', revoked_at = now() - $1::interval WHERE agent_nhi = 'alice'"
        " AND key_type IN ('ed25519', 'ml_dsa_65')",
        timedelta(minutes=1),
    )
    assert (await alice.puts(alice.signs(first.channel_id, after=first))).json()["code"] == "key_revoked"


async def test_every_roster_is_in_the_audit(alice: Member, bob: Member, connection: asyncpg.Connection) -> None:
    first = await alice.makes_signed(READS)
    second = alice.signs(first.channel_id, after=first)
    await alice.puts(second)
    rows = await connection.fetch(
        "SELECT detail->>'roster' AS roster, detail->>'roster_hash' AS hash, detail->>'unlisted' AS gone"
        " FROM audit_events WHERE event_type = 'channel_policy_changed' ORDER BY detail->>'roster'"
    )
    assert [(row["roster"], row["hash"], row["gone"]) for row in rows] == [
        ("2", second.hash.hex(), "1"),
        (None, None, "bob"),
    ]
