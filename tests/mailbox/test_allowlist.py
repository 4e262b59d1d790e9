"""The allowlist: nobody by default, pairs and not names, and imports that admit nobody by accident."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from angelia.envelope.refusals import NotAllowed, UnknownSigner
from angelia.errors import InvalidArgument
from angelia.mailbox.mailbox import Mailbox

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)

Agent = Callable[[str], Mailbox]


def calyx(box: Mailbox) -> str:
    """The fingerprint that Calyx would give to an agent's Ed25519 key."""
    return base64.b64encode(hashlib.sha256(box.identity.public_key).digest()[:16]).decode().rstrip("=")


def test_a_new_mailbox_allows_nobody(alice: Mailbox) -> None:
    assert alice.allowlist.entries() == []
    with pytest.raises(NotAllowed) as refused:
        alice.allowlist.check(alice.identity.pair.public, "bob")
    assert refused.value.hint == "angelia mail allow bob"


def test_only_who_is_pinned_can_be_allowed(alice: Mailbox) -> None:
    with pytest.raises(UnknownSigner):
        alice.allowlist.allow("zoe", NOW)


def test_allowing_twice_is_allowing_once_and_denying_ends_it(alice: Mailbox, bob: Mailbox) -> None:
    alice.allowlist.allow("bob", NOW, "first")
    alice.allowlist.allow("bob", NOW)
    (entry,) = alice.allowlist.entries()
    assert (entry.nhi, entry.label, entry.fingerprint) == ("bob", "first", bob.identity.pair.public.fingerprint)
    alice.allowlist.check(bob.identity.pair.public, "bob")
    assert alice.allowlist.deny("bob") == 1
    assert alice.allowlist.deny("bob") == 0


@pytest.mark.parametrize(
    "label", ["\x1b[2J\x07", "two\nlines", "\u202etxt.exe", "nul\0inside", "'; DROP TABLE pins; --", "ü" * 256]
)
def test_a_label_comes_back_as_it_was_whatever_is_in_it(alice: Mailbox, bob: Mailbox, label: str) -> None:
    alice.allowlist.allow("bob", NOW, label)
    assert [entry.label for entry in alice.allowlist.entries()] == [label]
    exported = alice.allowlist.export_json()
    assert json.loads(exported)[0]["label"] == label
    assert b"\x1b" not in exported
    assert alice.pinned_keys.pin("bob") is not None


@pytest.mark.parametrize("label", ["x" * 257, "\ud800"])
def test_a_label_that_cannot_be_kept_is_refused(alice: Mailbox, bob: Mailbox, label: str) -> None:
    with pytest.raises(InvalidArgument):
        alice.allowlist.allow("bob", NOW, label)


def test_what_is_exported_can_be_imported_elsewhere(alice: Mailbox, bob: Mailbox, agent: Agent) -> None:
    carol = agent("carol")
    exported = alice.allowlist.export_json()
    imported = carol.allowlist.import_json(exported, NOW)
    assert (imported.added, imported.refused) == (1, ())
    assert carol.allowlist.entries() == alice.allowlist.entries()
    assert carol.allowlist.import_json(exported, NOW).added == 0


def test_a_calyx_fingerprint_selects_a_pinned_agent_and_admits_no_other(
    alice: Mailbox, bob: Mailbox, agent: Agent
) -> None:
    stranger = agent("stranger")
    alice.allowlist.deny("bob")
    imported = alice.allowlist.import_json(json.dumps([calyx(bob), calyx(stranger), "A" * 22]).encode(), NOW)
    assert imported.added == 1
    assert len(imported.refused) == 2
    assert [entry.nhi for entry in alice.allowlist.entries()] == ["bob"]


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "short",
        "A" * 21 + "\n",
        "A" * 22 + "\n",
        "A" * 43,
        {"fingerprint": "A" * 42, "nhi": "bob"},
        {"fingerprint": "A" * 43 + "\n", "nhi": "bob"},
        {"fingerprint": "A" * 43, "nhi": "Bob"},
        {"fingerprint": "A" * 43, "nhi": "b\u043eb"},
        {"fingerprint": "A" * 43, "nhi": "bob", "label": "x" * 257},
    ],
)
def test_an_entry_that_is_none_is_reported_and_the_others_are_taken(alice: Mailbox, entry: object) -> None:
    good = {"fingerprint": "B" * 43, "nhi": "good"}
    imported = alice.allowlist.import_json(json.dumps([entry, good]).encode(), NOW)
    assert (imported.added, len(imported.refused)) == (1, 1)
    assert [one.nhi for one in alice.allowlist.entries()] == ["good"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"{}", b"null", b"[1]", b"[null]", b'[{"nhi":"bob"}]', b"\xff", b'["\xff"]']
)
def test_what_is_no_list_is_refused_whole(alice: Mailbox, content: bytes) -> None:
    with pytest.raises(InvalidArgument):
        alice.allowlist.import_json(content, NOW)
    assert alice.allowlist.entries() == []
