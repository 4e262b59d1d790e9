"""An agent publishes, rotates and renews its own keys through a client, and what a crash or a lost answer leaves."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from angelia.client import AsyncClient, Client, Unreachable, own_key_renewal, transport
from angelia.envelope.bundles import Link, UntrustedBundle
from angelia.errors import Unauthenticated, Unavailable
from angelia.keys.model import RotationPolicy
from angelia.mailbox import identity
from angelia.mailbox.key_rotation import KeyRotation
from angelia.mailbox.mailbox import Mailbox
from angelia.runtime_file import read_runtime
from client.letters import answer, later, newest, now, rotated, serve
from client.recorder import Recorder
from live_agents import Person
from server_process import ServerProcess

HOUR = timedelta(hours=1)
BATCH = 21  # a hundred one-time keys take their time, and show no more


@pytest.fixture(autouse=True)
def short_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(own_key_renewal, "ONE_TIME_BATCH", BATCH)
    monkeypatch.setattr(own_key_renewal, "ONE_TIME_LOW", BATCH - 1)


@pytest.fixture
def alice(boxes: Callable[[str], Mailbox]) -> Mailbox:
    return boxes("alice")


def _kem(link: Link) -> Any:
    return link.bundle.kem_keys[0].key.key_id


def test_publishing_twice_is_publishing_once(join: Callable[..., Person]) -> None:
    alice = join("alice", publishes=False)
    first = alice.client.keys.publish(alice.mailbox)
    assert (first.bundle_version, first.prekeys_uploaded) == (1, BATCH)
    assert alice.client.keys.publish(alice.mailbox) == first
    assert alice.in_step()


async def test_the_asynchronous_client_does_the_same(join: Callable[..., Person], server: ServerProcess) -> None:
    alice, bob = join("alice"), join("bob")
    async with AsyncClient(server.start_url, identity=alice.mailbox) as client:
        rotated_to = await client.keys.rotate(alice.mailbox, signer=True)
        envelope = await client.mail.seal(alice.mailbox, bob.name, b"hello")
        await client.keys.find(bob.mailbox, alice.name)
        bob.mailbox.allowlist.allow(alice.name, now())
        assert (await client.mail.open(bob.mailbox, envelope.wire)).body == b"hello"
    assert rotated_to.bundle_version == 2
    assert alice.in_step()


@pytest.mark.parametrize("minutes", [0, 4], ids=["at once", "signed anew"])
def test_the_lost_answer_to_a_publication_costs_nothing(
    join: Callable[..., Person], monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    alice = join("alice", publishes=False)
    alice.client.loses = "/v1/keys/bundle"
    with pytest.raises(Unreachable):
        alice.client.keys.publish(alice.mailbox)
    alice.reopen()
    later(monkeypatch, timedelta(minutes=minutes))
    assert alice.client.keys.publish(alice.mailbox).bundle_version == 1
    assert alice.in_step()


@pytest.mark.parametrize("signer", [False, True], ids=["kem", "signer"])
@pytest.mark.parametrize("minutes", [0, 4], ids=["at once", "signed anew"])
def test_the_lost_answer_to_a_rotation_costs_nothing(
    join: Callable[..., Person], monkeypatch: pytest.MonkeyPatch, signer: bool, minutes: int
) -> None:
    alice = join("alice")
    before = newest(alice.mailbox).bundle
    alice.client.loses = "/v1/keys/rotate"
    with pytest.raises(Unreachable):
        alice.client.keys.rotate(alice.mailbox, signer=signer)
    assert alice.served() != before.hash
    alice.reopen()
    assert alice.mailbox.key_rotation.pending() is not None
    later(monkeypatch, timedelta(minutes=minutes))
    done = alice.client.keys.publish(alice.mailbox)
    assert (done.bundle_version, done.prekeys_uploaded) == (2, BATCH)
    assert alice.in_step()
    assert (newest(alice.mailbox).bundle.signer == before.signer) is not signer
    assert alice.client.agents.me().handle == alice.name


def test_the_lost_answer_to_an_emergency_is_found_out_by_acting_as_the_next_pair(join: Callable[..., Person]) -> None:
    alice = join("alice")
    old = alice.mailbox.identity.key_id
    # The second try is signed by a pair that signs no more, since an emergency leaves it no grace.
    alice.client.loses, alice.client.times = "/v1/keys/emergency-rotate", 1
    assert alice.client.keys.emergency_rotate(alice.mailbox, why="stolen").bundle_version == 2
    assert alice.in_step()
    assert alice.mailbox.identity.key_id != old
    assert alice.client.agents.me().key_id == alice.mailbox.identity.key_id


def test_a_pair_that_signs_no_more_is_replaced_by_the_next_only_if_the_server_knows_it(
    recorder: Recorder, alice: Mailbox
) -> None:
    before, old = newest(alice), alice.identity.key_id
    refused = {"title": "unknown key", "code": "unauthenticated", "status": 401}
    recorder.tell("POST", "/v1/keys/rotate", refused, status=401)
    recorder.tell("GET", "/v1/keys/bundle/alice", refused, status=401)
    with Client(recorder.url, identity=alice) as client:
        with pytest.raises(Unauthenticated):
            client.keys.rotate(alice, signer=True)
        assert newest(alice) == before
        pending = alice.key_rotation.pending()
        assert pending is not None
        serve(recorder, "alice", answer(before))
        recorder.tell("GET", "/v1/keys/prekeys/count", {"count": 50})
        with pytest.raises(UntrustedBundle):
            client.keys.rotate(alice, signer=True)
        assert alice.key_rotation.pending() == pending
        serve(recorder, "alice", answer(pending.link))
        assert client.keys.rotate(alice, signer=True).bundle_version == 2
    assert newest(alice).bundle.hash == pending.link.bundle.hash
    signed = {seen.headers["signature-input"].split('keyid="')[1][:36] for seen in recorder.seen}
    assert signed == {str(old), str(alice.identity.key_id)}


@pytest.mark.parametrize("kind", ["publish", "rotate", "signer", "emergency"])
def test_a_crash_after_the_server_took_the_bundle_leaves_a_home_that_goes_on(
    join: Callable[..., Person], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    alice = join("alice", publishes=kind != "publish")

    def crash(*args: object) -> Link:
        raise KeyboardInterrupt

    acts: dict[str, Callable[[], object]] = {
        "publish": lambda: alice.client.keys.publish(alice.mailbox),
        "rotate": lambda: alice.client.keys.rotate(alice.mailbox),
        "signer": lambda: alice.client.keys.rotate(alice.mailbox, signer=True),
        "emergency": lambda: alice.client.keys.emergency_rotate(alice.mailbox, why="stolen"),
    }
    with monkeypatch.context() as patch:
        patch.setattr(KeyRotation, "finish", crash)
        with pytest.raises(KeyboardInterrupt):
            acts[kind]()
    alice.reopen()
    done = alice.client.keys.publish(alice.mailbox)
    assert (done.bundle_version, done.prekeys_uploaded) == (1 if kind == "publish" else 2, BATCH)
    assert alice.in_step()
    alice.reopen()
    assert alice.client.keys.rotate(alice.mailbox, signer=True).bundle_version == done.bundle_version + 1
    assert alice.in_step()


def test_a_server_that_is_behind_gets_the_chain_from_where_it_is(join: Callable[..., Person]) -> None:
    alice, bob = join("alice", publishes=False), join("bob")
    first = alice.mailbox.own_keys.first_bundle(now())
    alice.mailbox.key_rotation.finish(now())
    bob.mailbox.pinned_keys.pin_first(first, now() - 2 * HOUR)
    for _ in range(2):
        rotated(alice.mailbox)
    assert alice.client.keys.publish(alice.mailbox).bundle_version == 3
    assert alice.in_step()
    rotated(alice.mailbox)
    assert alice.client.keys.rotate(alice.mailbox, signer=True).bundle_version == 5
    assert alice.in_step()
    assert bob.client.keys.find(bob.mailbox, alice.name)[0].bundle.bundle_version == 5


def test_a_home_that_was_put_back_from_an_old_copy_is_told_so(join: Callable[..., Person], tmp_path: Path) -> None:
    alice = join("alice")
    alice.close()
    shutil.copytree(alice.home / alice.name, tmp_path / "copy")
    alice.reopen()
    alice.client.keys.rotate(alice.mailbox)
    alice.close()
    shutil.rmtree(alice.home / alice.name)
    shutil.copytree(tmp_path / "copy", alice.home / alice.name)
    alice.reopen()
    for publish in (alice.client.keys.publish, alice.client.keys.rotate):
        with pytest.raises(UntrustedBundle):
            publish(alice.mailbox)
    assert alice.version == 1


def test_a_rotation_that_is_asked_for_is_done_though_a_renewal_was_cut_short(join: Callable[..., Person]) -> None:
    alice = join("alice")
    first = _kem(newest(alice.mailbox))
    alice.mailbox.key_rotation.begin(now(), kem=False)
    assert alice.client.keys.rotate(alice.mailbox).bundle_version == 3
    assert _kem(newest(alice.mailbox)) != first
    alice.mailbox.key_rotation.begin(now(), kem=False)
    assert alice.client.keys.publish(alice.mailbox).bundle_version == 4
    assert alice.in_step()


@pytest.mark.parametrize("taken", [False, True], ids=["the server has not", "the server has"])
def test_an_emergency_revokes_what_a_rotation_that_was_cut_short_left(join: Callable[..., Person], taken: bool) -> None:
    alice = join("alice")
    stolen = {_kem(newest(alice.mailbox))}
    if taken:
        alice.client.loses = "/v1/keys/rotate"
        with pytest.raises(Unreachable):
            alice.client.keys.rotate(alice.mailbox)
    else:
        alice.mailbox.key_rotation.begin(now())
    pending = alice.mailbox.key_rotation.pending()
    assert pending is not None
    stolen.add(_kem(pending.link))
    assert alice.client.keys.emergency_rotate(alice.mailbox, why="stolen").bundle_version == 3
    assert alice.in_step()
    revoked = {one.old_key_id for one in alice.client.keys.history(alice.name).rotations if one.reason == "emergency"}
    assert stolen <= revoked
    assert len(newest(alice.mailbox).bundle.kem_keys) == 1
    assert newest(alice.mailbox).bundle.signer != pending.link.bundle.signer


def test_an_emergency_that_is_asked_for_again_uses_no_seed_that_lay_there_since_the_first_time(
    join: Callable[..., Person],
) -> None:
    alice = join("alice")
    alice.mailbox.key_rotation.begin(now(), signer=True, emergency=True)
    stolen = set(alice.mailbox.identity.unlocked.seeds.values())
    assert alice.client.keys.emergency_rotate(alice.mailbox, why="still stolen").bundle_version == 3
    assert alice.in_step()
    assert stolen.isdisjoint(alice.mailbox.identity.unlocked.seeds.values())


def test_whoever_finishes_an_emergency_says_why_and_since_when(recorder: Recorder, alice: Mailbox) -> None:
    away = {"title": "away", "code": "unavailable", "status": 503}
    recorder.tell("POST", "/v1/keys/emergency-rotate", away, status=503)
    since = datetime(2026, 11, 1, tzinfo=UTC)
    with Client(recorder.url, identity=alice) as client:
        with pytest.raises(Unavailable):
            client.keys.emergency_rotate(alice, why="laptop lost", compromised_since=since)
        with pytest.raises(Unavailable):
            client.keys.publish(alice)
    asked_for = [one.json() for one in recorder.asked("POST", "/v1/keys/emergency-rotate")]
    assert {(one["reason"], one["compromised_since"]) for one in asked_for} == {("laptop lost", "2026-11-01T00:00:00Z")}


@pytest.mark.parametrize("older", [False, True], ids=["forgets it", "lists it still"])
def test_after_a_key_was_revoked_the_keys_rotate_as_before(
    join: Callable[..., Person], monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    alice = join("alice")
    replaced = _kem(newest(alice.mailbox))
    alice.client.keys.rotate(alice.mailbox)
    alice.client.keys.revoke(replaced)
    alice.mailbox.key_rotation.destroy_replaced(replaced)
    if older:
        monkeypatch.setattr(KeyRotation, "_revoked", lambda _: set())
    assert alice.client.keys.rotate(alice.mailbox).bundle_version == 3
    listed = [entry.key.key_id for entry in newest(alice.mailbox).bundle.kem_keys]
    assert (replaced in listed) is older
    assert alice.in_step()


@pytest.mark.parametrize("kind", ["bundle", "rotate"])
def test_what_another_process_signed_anew_meanwhile_does_not_fork_the_chain(
    join: Callable[..., Person], kind: str
) -> None:
    alice = join("alice", publishes=kind == "rotate")

    def sign_anew() -> None:
        with Mailbox(alice.home, identity.load(alice.home, alice.name, lambda: ""), now()) as other:
            (other.own_keys.first_bundle if kind == "bundle" else other.key_rotation.begin)(now() + HOUR)

    alice.client.before = (f"/v1/keys/{kind}", sign_anew)
    (alice.client.keys.publish if kind == "bundle" else alice.client.keys.rotate)(alice.mailbox)
    assert alice.in_step()
    alice.client.keys.rotate(alice.mailbox)
    assert alice.in_step()


def test_a_rotation_that_another_process_finished_stays_finished(join: Callable[..., Person]) -> None:
    alice = join("alice")
    link = alice.mailbox.key_rotation.begin(now())

    def finish_and_begin() -> None:
        with Mailbox(alice.home, identity.load(alice.home, alice.name, lambda: ""), now()) as other:
            other.key_rotation.finish(now(), link)
            other.key_rotation.begin(now())

    alice.client.before = ("/v1/keys/rotate", finish_and_begin)
    assert alice.client.keys.rotate(alice.mailbox).bundle_version == 2
    assert newest(alice.mailbox) == link
    assert alice.client.keys.publish(alice.mailbox).bundle_version == 3
    assert alice.in_step()


def test_an_emergency_revokes_for_everybody_at_once(join: Callable[..., Person]) -> None:
    alice, bob = join("alice"), join("bob")
    bob.client.keys.find(bob.mailbox, alice.name)
    stolen = newest(alice.mailbox).bundle
    done = alice.client.keys.emergency_rotate(alice.mailbox, why="stolen", compromised_since=now() - HOUR)
    assert (done.bundle_version, done.prekeys_uploaded) == (2, BATCH)
    assert alice.in_step()
    history = alice.client.keys.history(alice.name).rotations
    assert {one.reason for one in history} == {"emergency"}
    assert _kem(Link(stolen)) in {one.old_key_id for one in history}
    bob.mailbox.pinned_keys.drop_bundle(alice.name)
    found, _ = bob.client.keys.find(bob.mailbox, alice.name)
    assert found.bundle.signer != stolen.signer


@pytest.fixture
def however_young(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that were made just now are replaced as well."""
    monkeypatch.setattr(own_key_renewal, "SCHEDULED_EVERY", timedelta(0))


@pytest.mark.usefixtures("however_young")
def test_a_schedule_makes_its_own_agent_rotate_and_its_peers_never(
    join: Callable[..., Person], server: ServerProcess
) -> None:
    alice, bob, carol = join("alice"), join("bob"), join("carol")
    for peer in (bob, carol):
        alice.client.keys.put_schedule(peer.name, RotationPolicy.HOURLY)
    assert alice.client.keys.rotate_due(alice.mailbox) == []
    assert alice.version == 1
    _make_due(server)
    assert [bob.client.keys.rotate_due(bob.mailbox), bob.version] == [[], 1]
    done = alice.client.keys.rotate_due(alice.mailbox)
    assert sorted(one.peer for one in done) == sorted([bob.name, carol.name])
    assert alice.version == 2
    for one in alice.client.keys.schedules():
        assert (one.current_key_id, one.due_since) == (_kem(newest(alice.mailbox)), None)
    assert carol.client.keys.rotate_due(carol.mailbox) == []
    assert {one.reason for one in alice.client.keys.history(alice.name).rotations} == {"scheduled"}


@pytest.mark.usefixtures("however_young")
def test_of_two_processes_of_an_agent_whose_schedule_is_due_one_reports(
    join: Callable[..., Person], server: ServerProcess
) -> None:
    alice, bob = join("alice"), join("bob")
    alice.client.keys.put_schedule(bob.name, RotationPolicy.HOURLY)
    _make_due(server)
    done: list[Any] = []
    mailbox, client = alice._opened()
    with mailbox, client:
        # One has seen that it is due, and is about to report when the other does.
        alice.client.before = ("/rotated", lambda: done.extend(client.keys.rotate_due(mailbox)))
        alice.client.keys.rotate_due(alice.mailbox)
    assert [one.peer for one in done] == [bob.name]
    assert alice.version == 2
    (one,) = alice.client.keys.schedules()
    assert (one.current_key_version, one.due_since) == (2, None)


@pytest.mark.usefixtures("however_young")
def test_a_due_rotation_whose_report_was_cut_short_is_only_reported(
    join: Callable[..., Person], server: ServerProcess
) -> None:
    alice, bob = join("alice"), join("bob")
    alice.client.keys.put_schedule(bob.name, RotationPolicy.HOURLY)
    _make_due(server)

    def crash() -> None:
        raise KeyboardInterrupt

    alice.client.before = ("/rotated", crash)
    with pytest.raises(KeyboardInterrupt):
        alice.client.keys.rotate_due(alice.mailbox)
    rotated_to = newest(alice.mailbox)
    (reported,) = alice.client.keys.rotate_due(alice.mailbox)
    assert (reported.current_key_id, reported.due_since) == (_kem(rotated_to), None)
    assert newest(alice.mailbox) == rotated_to


def _make_due(server: ServerProcess) -> None:
    async def update() -> None:
        runtime = read_runtime(server.data_dir)
        assert runtime is not None
        connection = await asyncpg.connect(runtime.database_url)
        await connection.execute("UPDATE ratchet_states SET due_since = now()")
        await connection.close()

    asyncio.run(update())
