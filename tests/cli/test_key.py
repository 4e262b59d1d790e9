"""Keys from the command line: handed over as files or published, followed, pinned, and never swapped unseen."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from angelia.envelope.bundles import Link, anchor_of, sign_bundle
from angelia.envelope.signing import SigningPair
from angelia.mailbox import bundle_file, identity
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.pinned_keys import Pin
from cli.running import Angelia, Ended
from cli.test_agent import PUBLISHED, TAKEN, UNCLAIMED
from cli.test_mail import errors
from client.recorder import Recorder
from client.test_verbs import AGENT

FINGERPRINT = r"[A-Za-z0-9_-]{43}"


@pytest.fixture
def alice(person: Callable[[str], Angelia], server: Recorder) -> Angelia:
    """Alice, who is on no server, with her first bundle in `alice-1.keys`."""
    command = person("alice")
    assert command("agent", "new", "alice").code == 0
    assert command("key", "publish", "--out", "alice-1.keys").code == 0
    return command


@pytest.fixture
def bob(person: Callable[[str], Angelia], server: Recorder) -> Angelia:
    command = person("bob")
    assert command("agent", "new", "bob").code == 0
    return command


@pytest.fixture
def registered(person: Callable[[str], Angelia], server: Recorder) -> Angelia:
    """An agent that a scripted server knows."""
    server.tell("POST", "/register", {"id": AGENT["id"], "profile_url": "/who/x"}, status=201)
    server.tell("GET", "/v1/agents/me", AGENT)
    server.tell("POST", "/v1/keys/bundle", PUBLISHED, status=201)
    command = person("alice")
    assert command("agent", "new", "alice", "--register").code == 0
    return command


def state_of(ended: Ended) -> dict[str, object]:
    assert ended.code == 0, ended.err
    state: dict[str, object] = json.loads(ended.out)
    return state


def pin_of(shell: Path, nhi: str = "alice", owner: str = "bob") -> Pin | None:
    home = shell / f"home-{owner}"
    with Mailbox(home, identity.load(home, owner, lambda: ""), datetime.now(UTC)) as box:
        return box.pinned_keys.pin(nhi)


@pytest.mark.parametrize(("days", "version"), [(2, 1), (4, 2), (8, 2)])
def test_keys_that_are_handed_over_again_are_fresh(
    alice: Angelia, monkeypatch: pytest.MonkeyPatch, days: int, version: int
) -> None:
    before = state_of(alice("key", "show", "--json"))
    later = datetime.now(UTC) + timedelta(days=days)
    monkeypatch.setattr("angelia.cli.times.now", lambda: later)
    after = state_of(alice("key", "publish", "--out", "again.keys", "--json"))
    assert after["bundle_version"] == version
    assert (after["kem_keys"] == before["kem_keys"]) == (days < 7)


def test_keys_are_handed_over_as_a_file_and_followed_by_the_next_one(
    alice: Angelia, bob: Angelia, server: Recorder, shell: Path
) -> None:
    first = state_of(alice("key", "show", "--json"))
    pinned = bob("key", "pin", "alice", "alice-1.keys", "--fingerprint", str(first["fingerprint"]))
    assert (pinned.code, pinned.out) == (0, f"pinned alice: {first['fingerprint']}\n")

    rotated = alice("key", "rotate", "--signer", "--out", "alice-2.keys")
    assert rotated.code == 0
    assert re.fullmatch(rf"bundle       v2\nold keys     open .*\nfingerprint  {FINGERPRINT} \(new\)\n", rotated.out)
    second = state_of(alice("key", "show", "--json"))
    assert second["fingerprint"] != first["fingerprint"]
    followed = bob("key", "pin", "alice", "alice-2.keys")
    assert (followed.code, followed.out) == (0, f"pinned alice: {second['fingerprint']}\n")
    pin = pin_of(shell)
    assert pin is not None
    assert (pin.bundle_version, pin.trusted_by.value) == (2, "rotation")

    old = bob("key", "pin", "alice", "alice-1.keys", "--yes")
    assert errors(old) == (3, "untrusted_bundle")
    assert old.err.startswith("error: bundle 1 of alice is older than bundle 2, which was seen before (")
    assert errors(bob("mail", "allow", "alice", "alice-1.keys")) == (3, "untrusted_bundle")
    assert errors(bob("key", "pin", "alice", "alice-1.keys")) == (3, "untrusted_bundle")
    assert pin_of(shell) == pin
    assert bob("mail", "allow", "alice", "alice-2.keys").out == (
        f"allowed alice: {second['fingerprint']} (must equal alice's `agent show`)\n"
    )
    assert f"fingerprint  {second['fingerprint']}\n" in alice("agent", "show").out
    assert server.seen == []


def test_mail_under_way_opens_with_the_keys_that_were_replaced(alice: Angelia, bob: Angelia) -> None:
    bob("key", "publish", "--out", "bob-1.keys")
    alice("key", "pin", "bob", "bob-1.keys", "--yes")
    bob("mail", "allow", "alice", "alice-1.keys")
    alice("mail", "send", "bob", "under way", "--out", "letter.agl")
    assert bob("key", "rotate", "--signer", "--out", "bob-2.keys").code == 0
    assert bob("mail", "open", "letter.agl").out == "under way\n"
    id_ = bob("mail", "inbox", "--json").out
    bob("mail", "ack", json.loads(id_)["replay_key"], "--out", "receipt.json")
    # The receipt is signed by a pair that Alice has to follow first.
    assert alice("mail", "receipts", "receipt.json").code == 8
    assert alice("key", "pin", "bob", "bob-2.keys").code == 0
    assert alice("mail", "receipts", "receipt.json").code == 0


def test_the_file_of_another_agent_pins_nobody(alice: Angelia, bob: Angelia, shell: Path) -> None:
    for words in (("key", "pin", "carol", "alice-1.keys", "--yes"), ("mail", "allow", "carol", "alice-1.keys")):
        ended = bob(*words)
        assert errors(ended) == (8, "not_found")
        assert ended.err == "error: alice-1.keys holds the keys of alice, not of carol (not_found)\n"
    assert pin_of(shell) is None
    assert pin_of(shell, "carol") is None


def swapped(shell: Path) -> str:
    """What a thief of the file could make of it: the next bundle, by a pair that the old one did not vouch for."""
    links = bundle_file.read(shell / "alice-1.keys")
    before, thief = links[-1].bundle, SigningPair.generate()
    forged = sign_bundle(
        thief,
        agent_nhi="alice",
        issued_at=before.issued_at + 1,
        kem_keys=before.kem_keys,
        after=anchor_of(before),
        suites=before.suites,
    )
    (shell / "forged.keys").write_bytes(bundle_file.encode([*links, Link(forged)]))
    return thief.public.fingerprint


def test_a_swapped_signer_is_refused_and_nothing_is_pinned(alice: Angelia, bob: Angelia, shell: Path) -> None:
    bob("mail", "allow", "alice", "alice-1.keys")
    before, thief = pin_of(shell), swapped(shell)
    ended = bob("key", "pin", "alice", "forged.keys")
    assert errors(ended) == (3, "untrusted_bundle")
    assert ended.err.splitlines()[1].endswith(f"--fingerprint {thief}")
    assert errors(bob("mail", "allow", "alice", "forged.keys")) == (3, "untrusted_bundle")
    assert pin_of(shell) == before
    # Only somebody who compared may jump; and the mail of the new pair is not opened for that.
    jumped = bob("key", "pin", "alice", "forged.keys", "--fingerprint", thief)
    assert (jumped.code, jumped.out) == (0, f"pinned alice: {thief}\n")
    assert "mail allow alice" in jumped.err
    assert thief not in bob("mail", "allow").out


def test_a_file_that_was_changed_is_refused(alice: Angelia, bob: Angelia, shell: Path) -> None:
    documents = json.loads((shell / "alice-1.keys").read_text())
    for change, code in (({"bundle_version": 2}, 3), ({"expires_at": 1}, 1), ({"agent_nhi": "../x"}, 8), ({"x": 1}, 1)):
        changed = [{"bundle": {**documents[0]["bundle"], **change}}]
        (shell / "changed.keys").write_text(json.dumps(changed))
        ended = bob("key", "pin", "alice", "changed.keys", "--yes")
        assert (ended.code, ended.out) == (code, ""), change
    for content in (b"", b"[]", b"{}", b"\xff", b"[" * 100_000):
        (shell / "changed.keys").write_bytes(content)
        assert errors(bob("key", "pin", "alice", "changed.keys", "--yes")) == (1, "invalid_argument")
    assert pin_of(shell) is None


def test_a_fingerprint_must_be_the_same_even_if_it_begins_with_a_dash(
    alice: Angelia, bob: Angelia, shell: Path
) -> None:
    right = str(state_of(alice("key", "show", "--json"))["fingerprint"])
    for wrong in ("-" + "A" * 42, "--help", "-q", "--" + "A" * 41):
        ended = bob("key", "pin", "alice", "alice-1.keys", "--fingerprint", wrong)
        assert errors(ended) == (3, "untrusted_bundle")
        assert right in ended.err
    pair = next(pair for _ in range(10_000) if (pair := SigningPair.generate()).public.fingerprint.startswith("-"))
    dashed, before = pair.public.fingerprint, bundle_file.read(shell / "alice-1.keys")[0].bundle
    bundle = sign_bundle(pair, agent_nhi="carol", issued_at=before.issued_at, kem_keys=before.kem_keys, after=None)
    (shell / "carol.keys").write_bytes(bundle_file.encode([Link(bundle)]))
    assert bob("key", "--fingerprint", dashed, "pin", "carol", "carol.keys").out == f"pinned carol: {dashed}\n"
    assert bob("key", "pin", "carol", "carol.keys", "--fingerprint", dashed).code == 0


def test_without_a_terminal_nothing_is_believed_or_destroyed_unasked(alice: Angelia, bob: Angelia, shell: Path) -> None:
    ended = bob("key", "pin", "alice", "alice-1.keys")
    assert errors(ended) == (2, "confirmation_required")
    assert pin_of(shell) is None
    emergency = ("key", "rotate", "--emergency", "--why", "stolen", "--out", "alice-2.keys")
    assert errors(alice(*emergency)) == (2, "confirmation_required")
    alice("key", "rotate", "--out", "alice-2.keys")
    replaced = state_of(alice("key", "show", "--json"))["kem_keys"][1]["key_id"]  # type: ignore[index]
    assert errors(alice("key", "revoke", replaced)) == (2, "confirmation_required")
    for words in (
        ("key", "revoke", replaced, "--dry-run"),
        (*emergency[:-1], "alice-3.keys", "--dry-run"),
    ):
        before = alice("key", "show", "--json").out
        ended = alice(*words)
        assert (ended.code, ended.out) == (0, "")
        assert ended.err.startswith("dry run: would revoke ")
        assert "at this machine; nothing done" in ended.err
        assert alice("key", "show", "--json").out == before
    ended = bob("key", "pin", "alice", "alice-1.keys", "--dry-run", "--yes")
    assert (ended.code, ended.err[:20]) == (0, "dry run: would trust")
    assert pin_of(shell) is None
    assert not (shell / "alice-3.keys").exists()


def test_a_person_is_asked_once(alice: Angelia, bob: Angelia, terminal: Callable[..., Ended], shell: Path) -> None:
    environ = {"ANGELIA_HOME": str(shell / "home-bob")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        declined = terminal("key", "pin", "alice", "alice-1.keys", typed=[("[y/N] ", "n\n")])
        agreed = terminal("key", "pin", "alice", "alice-1.keys", typed=[("[y/N] ", "y\n")])
    assert declined.code == 1
    assert re.search(rf"Trust the keys {FINGERPRINT} as those of alice at this machine, for good\?", agreed.out)
    assert agreed.code == 0
    pin = pin_of(shell)
    assert pin is not None
    assert pin.trusted_by.value == "operator"


def test_an_emergency_leaves_nothing_of_the_old_keys(alice: Angelia, bob: Angelia, shell: Path) -> None:
    bob("key", "publish", "--out", "bob-1.keys")
    bob("mail", "allow", "alice", "alice-1.keys")
    alice("key", "pin", "bob", "bob-1.keys", "--yes")
    alice("mail", "send", "bob", "too late", "--out", "letter.agl")
    ended = bob("key", "rotate", "--emergency", "--why", "laptop lost", "--yes", "--out", "bob-2.keys")
    assert ended.code == 0
    assert ended.out.splitlines()[1] == "old keys     destroyed"
    assert ended.out.endswith("(new)\n")
    assert errors(bob("mail", "open", "letter.agl")) == (8, "key_not_found")
    assert alice("key", "pin", "bob", "bob-2.keys").code == 0


def test_a_replaced_key_is_withdrawn_by_the_beginning_of_its_id(alice: Angelia) -> None:
    alice("key", "rotate", "--out", "alice-2.keys")
    active, replaced = (key["key_id"] for key in state_of(alice("key", "show", "--json"))["kem_keys"])  # type: ignore[attr-defined]
    done = alice("key", "revoke", replaced[:12], "--yes")
    assert done.out == f"revoked {replaced}, and destroyed its private half here\n"
    refused = alice("key", "revoke", active[:12], "--yes")
    assert errors(refused) == (1, "conflict")
    assert refused.err.splitlines()[1] == 'hint: replace it: angelia key rotate --emergency --why "…"'
    assert errors(alice("key", "revoke", "00000000", "--yes")) == (8, "not_found")
    assert errors(alice("key", "revoke", "0000", "--yes")) == (2, "usage")


def test_a_file_that_is_there_stops_a_rotation_before_it_begins(alice: Angelia, shell: Path) -> None:
    (shell / "mine").write_text("dear diary")
    for words in (("key", "rotate", "--out", "mine"), ("key", "publish", "--out", "mine")):
        assert errors(alice(*words)) == (1, "conflict")
    assert (shell / "mine").read_text() == "dear diary"
    assert alice("key", "rotate", "--out", "nowhere/mine").code == 1
    assert state_of(alice("key", "show", "--json"))["bundle_version"] == 1


def test_what_goes_together_is_said_together(alice: Angelia) -> None:
    for words in ("--emergency", "--why x", "--stolen-since 1h", "--dry-run"):
        assert errors(alice("key", "rotate", *words.split()))[0] == 2, words
    for verb in ("publish", "rotate"):
        ended = alice("key", verb)
        assert errors(ended) == (5, "unauthenticated")
        hint = "hint: angelia agent register --as alice; without a server: --out FILE"
        assert ended.err.splitlines()[1] == hint


def test_show_knows_what_was_handed_over(alice: Angelia, bob: Angelia) -> None:
    assert errors(bob("key", "show")) == (8, "key_not_found")
    unknown = bob("key", "show", "alice")
    assert errors(unknown) == (8, "key_not_found")
    assert "angelia key pin alice FILE" in unknown.err
    bob("mail", "allow", "alice", "alice-1.keys")
    facts = [line.split(maxsplit=1) for line in bob("key", "show", "alice").out.splitlines()]
    assert [name for name, _ in facts] == ["handle", "fingerprint", "bundle", "expires", "seals", "key", "pinned"]
    assert facts[-1][1].startswith("at first use, ")
    state = state_of(bob("key", "show", "alice", "--json"))
    assert (state["handle"], state["bundle_version"], state["trusted_by"]) == ("alice", 1, "first_use")
    assert bob("key", "show", "alice", "-q").out == f"{state['fingerprint']}\n"
    mine = alice("key", "show").out
    assert "one-time     not known: no server has any\n" in mine


def test_a_server_that_gives_somebody_elses_keys_is_not_believed(
    bob: Angelia, registered: Angelia, server: Recorder, shell: Path
) -> None:
    bob("key", "publish", "--out", "bob-1.keys")
    document = json.loads((shell / "bob-1.keys").read_text())[0]
    server.tell("GET", "/v1/keys/bundle/carol", {**document, "bundle_id": "00"})
    for words in (("key", "pin", "carol", "--yes"), ("key", "show", "carol"), ("mail", "allow", "carol")):
        assert errors(registered(*words)) == (3, "untrusted_bundle")
    assert errors(registered("mail", "send", "carol", "hi")) == (3, "untrusted_bundle")
    assert registered("mail", "outbox").out == ""


def test_a_server_that_serves_old_keys_does_not_move_the_pin_back(
    registered: Angelia, bob: Angelia, server: Recorder, shell: Path
) -> None:
    bob("key", "publish", "--out", "bob-1.keys")
    bob("key", "rotate", "--out", "bob-2.keys")
    old, new = json.loads((shell / "bob-2.keys").read_text())
    server.tell("GET", "/v1/keys/bundle/bob", {**new, "bundle_id": "00"})
    assert registered("key", "pin", "bob", "--yes").code == 0
    server.told["GET", "/v1/keys/bundle/bob"] = []
    server.tell("GET", "/v1/keys/bundle/bob", {**old, "bundle_id": "00"})
    assert errors(registered("key", "pin", "bob", "--yes")) == (3, "untrusted_bundle")
    pin = pin_of(shell, "bob", "alice")
    assert pin is not None
    assert pin.bundle_version == 2


@pytest.mark.parametrize("words", [("key", "show", "bob"), ("key", "pin", "bob", "--yes")])
def test_a_server_that_promises_more_bundles_and_repeats_itself_is_not_asked_for_ever(
    registered: Angelia, bob: Angelia, server: Recorder, shell: Path, words: tuple[str, ...]
) -> None:
    bob("key", "publish", "--out", "bob-1.keys")
    assert registered("key", "pin", "bob", "bob-1.keys", "--yes").code == 0
    for file in ("bob-2.keys", "bob-3.keys"):
        bob("key", "rotate", "--out", file)
    *_, second, third = json.loads((shell / "bob-3.keys").read_text())
    server.tell("GET", "/v1/keys/bundle/bob", {**third, "bundle_id": "00"})
    server.tell("GET", "/v1/keys/bundle/bob", {"bundles": [second], "has_more": True, "revoked": []})
    assert errors(registered(*words))[1] == "bad_answer"
    assert len(server.asked("GET", "/v1/keys/bundle/bob")) == 3


def test_with_a_server_keys_are_published_rotated_withdrawn_and_pinned(
    live: str, person: Callable[[str], Angelia], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angelia.client.own_key_renewal.ONE_TIME_BATCH", 21)
    monkeypatch.setattr("angelia.client.own_key_renewal.ONE_TIME_LOW", 20)
    name, other = f"alice-{secrets.token_hex(3)}", f"bob-{secrets.token_hex(3)}"
    alice, bob = person(name), person(other)
    alice("agent", "new", name, "--register")
    bob("agent", "new", other, "--register")
    shown = alice("key", "show").out
    fingerprint = shown.splitlines()[1].split()[1]
    assert shown.endswith("one-time     21 keys unused\n")
    assert alice("key", "publish").out == f"bundle       v1 published, 21 one-time keys\nfingerprint  {fingerprint}\n"
    seen = bob("key", "show", name)
    assert seen.out.endswith("pinned       no\n")
    assert seen.err == f"next: compare the fingerprint with its owner, then `angelia key pin {name}`\n"
    assert bob("key", "pin", name, "--fingerprint", fingerprint).code == 0

    for number, flags in enumerate(((), ("--signer",), ("--out", "alice-4.keys")), 2):
        rotated = alice("key", "rotate", *flags)
        assert rotated.out.startswith(f"bundle       v{number} published, 21 one-time keys\nold keys     open what ")
    followed = bob("key", "pin", name)
    assert followed.code == 0
    assert alice("key", "show", "-q").out.strip() in followed.out
    keys = state_of(alice("key", "show", "--json"))["kem_keys"]
    assert [key["status"] for key in keys] == ["active", "grace", "grace", "grace"]  # type: ignore[attr-defined]

    withdrawn = keys[-1]["key_id"]  # type: ignore[index]
    assert alice("key", "revoke", withdrawn, "--yes").code == 0
    for command, words in ((alice, ()), (bob, (name,))):
        assert f"{withdrawn}  xwing  revoked\n" in command("key", "show", *words).out
    emergency = alice("key", "rotate", "--emergency", "--why", "stolen", "--stolen-since", "1h", "--yes")
    assert emergency.out.startswith("bundle       v5 published, 21 one-time keys\nold keys     destroyed\n")
    assert bob("key", "pin", name).code == 0
    assert "rotation" in bob("key", "show", name).out
    assert errors(alice("key", "show", "nobody-of-that-name")) == (8, "not_found")


def test_a_chain_that_began_as_files_reaches_a_server_later(
    live: str, person: Callable[[str], Angelia], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angelia.client.own_key_renewal.ONE_TIME_BATCH", 21)
    monkeypatch.setattr("angelia.client.own_key_renewal.ONE_TIME_LOW", 20)
    name, other = f"alice-{secrets.token_hex(3)}", f"bob-{secrets.token_hex(3)}"
    alice, bob = person(name), person(other)
    alice("agent", "new", name)
    bob("agent", "new", other, "--register")
    alice("key", "publish", "--out", "1.keys")
    bob("mail", "allow", name, "1.keys")
    for number in (2, 3):
        alice("key", "rotate", "--out", f"{number}.keys")
    registered = alice("agent", "register")
    assert registered.code == 0, registered.err
    assert "bundle       v3 published, 21 one-time keys\n" in registered.out
    assert bob("key", "pin", name).code == 0
    assert json.loads(bob("key", "show", name, "--json").out)["bundle_version"] == 3


def test_keys_that_were_handed_over_are_never_signed_anew(
    person: Callable[[str], Angelia], server: Recorder, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.tell("POST", "/register", {"id": AGENT["id"], "profile_url": "/who/x"}, status=201)
    server.tell("GET", "/v1/agents/me", AGENT)
    server.tell("POST", "/v1/keys/bundle", {"title": "busy", "code": "rate_limited", "status": 429}, status=429)
    server.tell("POST", "/v1/keys/bundle", PUBLISHED, status=201)
    alice = person("alice")
    assert alice("agent", "new", "alice", "--register").code == 1
    assert alice("key", "publish", "--out", "alice-1.keys").code == 0
    monkeypatch.setattr("angelia.client.clock.now", lambda: datetime.now(UTC) + timedelta(hours=1))
    assert alice("key", "publish").code == 0
    sent = server.asked("POST", "/v1/keys/bundle")[-1].json()["bundle"]
    assert sent == json.loads((shell / "alice-1.keys").read_text())[0]["bundle"]


def test_an_emergency_without_a_server_drops_a_rotation_that_was_cut_short(alice: Angelia, shell: Path) -> None:
    home = shell / "home-alice"
    with Mailbox(home, identity.load(home, "alice", lambda: ""), datetime.now(UTC)) as box:
        seen = box.key_rotation.begin(datetime.now(UTC), signer=True).bundle
    ended = alice("key", "rotate", "--emergency", "--why", "stolen", "--yes", "--out", "alice-2.keys")
    assert ended.code == 0, ended.err
    first, after = (link.bundle for link in bundle_file.read(shell / "alice-2.keys"))
    assert after.signer not in (first.signer, seen.signer)
    assert [entry.key.key_id for entry in after.kem_keys if entry in (*first.kem_keys, *seen.kem_keys)] == []
    assert len(after.kem_keys) == 1


def test_an_agent_claims_no_other_handle_than_its_bundles_name(alice: Angelia, server: Recorder) -> None:
    server.tell("POST", "/register", {"id": AGENT["id"], "profile_url": "/who/x"}, status=201)
    server.tell("GET", "/v1/agents/me", UNCLAIMED)
    server.tell("GET", "/v1/agents/me", {**AGENT, "handle": "alice-7"})
    server.tell("PUT", "/v1/agents/me/handle", TAKEN, status=409)
    hint = "hint: make another agent: angelia agent new NAME --register"
    taken = alice("agent", "register")
    assert (taken.code, taken.err.splitlines()) == (1, ["error: the handle alice is taken (already_exists)", hint])
    for words in (("agent", "handle", "alice-7"), ("agent", "register")):
        refused = alice(*words)
        assert (errors(refused), refused.err.splitlines()[1]) == ((1, "conflict"), hint)
        assert "the bundles of alice name it alice, so it cannot be alice-7" in refused.err
    assert [seen.json()["handle"] for seen in server.asked("PUT", "/v1/agents/me/handle")] == ["alice"]
    # Without the handle it goes on as it was.
    assert alice("key", "rotate", "--out", "alice-2.keys").code == 0


def test_an_agent_whose_first_pair_is_gone_claims_no_handle_in_vain(alice: Angelia, server: Recorder) -> None:
    alice("key", "rotate", "--signer", "--out", "alice-2.keys")
    refused = alice("agent", "register")
    assert errors(refused) == (1, "conflict")
    assert refused.err.splitlines()[1] == "hint: make another agent: angelia agent new NAME --register"
    assert server.seen == []


def test_operators_replace_a_data_key_of_the_server(server: Recorder, angelia: Angelia) -> None:
    made = {"purpose": "queue", "key_id": "5d1e9c1e-6d7a-4b58-9d6f-0d4f3f0c6a11"}
    server.tell("POST", "/v1/keys/data/queue/rotate", made, status=201)
    ended = angelia("key", "rotate-data", "queue")
    assert ended == Ended(0, f"the data key of queue is now {made['key_id']}\n", "")
    assert server.seen[0].headers["authorization"] == "Bearer agt_operator"
    assert state_of(angelia("key", "rotate-data", "queue", "--json")) == made


def test_a_data_key_is_named_by_what_it_encrypts(server: Recorder, angelia: Angelia) -> None:
    from angelia.cli.key import rotate_data
    from angelia.keys.model import DataKeyPurpose

    refused = angelia("key", "rotate-data", "mail")
    assert refused.code == 2
    assert "'queue', 'grace_period_keys'" in refused.err
    (purpose,) = (one for one in rotate_data.params if one.name == "purpose")
    assert set(purpose.type.choices) == set(DataKeyPurpose)  # type: ignore[attr-defined]
    assert server.seen == []
