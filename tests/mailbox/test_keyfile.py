"""The key file's format: versioned, extensible, and closed to whoever lacks the passphrase."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.errors import InvalidArgument
from angelia.mailbox import keyfile
from angelia.mailbox.keyfile import BrokenKeyFile, WrongPassphrase

SEEDS = {"ed25519": bytes(range(32))}


def nobody() -> str:
    raise AssertionError("asked for a passphrase that the file does not have")


@pytest.fixture(scope="module")
def protected() -> bytes:
    return keyfile.encode(SEEDS, keyfile.protect("correct horse"))


@given(st.dictionaries(st.text(min_size=1, max_size=12), st.binary(max_size=96), max_size=6))
def test_whatever_seeds_go_in_come_out(seeds: dict[str, bytes]) -> None:
    assert keyfile.unlock(keyfile.encode(seeds, None), nobody).seeds == seeds


def test_a_passphrase_hides_the_seed_and_opens_it_again(protected: bytes) -> None:
    assert b"ed25519" not in protected
    assert keyfile.unlock(protected, lambda: "correct horse").seeds == SEEDS


def test_the_file_says_how_it_is_protected(protected: bytes) -> None:
    said = json.loads(protected)
    assert (said["angelia_key"], said["protection"]) == (1, "scrypt-aes256gcm")
    assert (said["n"], said["r"], said["p"]) == (2**17, 8, 1)
    assert json.loads(keyfile.encode(SEEDS, None))["protection"] == "none"


def test_the_same_seed_and_passphrase_never_give_the_same_file(protected: bytes) -> None:
    assert keyfile.encode(SEEDS, keyfile.protect("correct horse")) != protected


def test_a_wrong_passphrase_is_refused(protected: bytes) -> None:
    with pytest.raises(WrongPassphrase):
        keyfile.unlock(protected, lambda: "wrong horse")


def test_a_changed_byte_is_refused(protected: bytes) -> None:
    changed = json.loads(protected)
    flip = {"A": "B"}.get(changed["sealed"][0], "A")
    changed["sealed"] = flip + changed["sealed"][1:]
    with pytest.raises(WrongPassphrase):
        keyfile.unlock(json.dumps(changed).encode(), lambda: "correct horse")


def test_a_passphrase_typed_decomposed_is_the_same_passphrase() -> None:
    made = keyfile.encode(SEEDS, keyfile.protect("Gru\u0308n"))
    assert keyfile.unlock(made, lambda: "Gr\u00fcn").seeds == SEEDS


def test_an_empty_passphrase_is_no_passphrase() -> None:
    with pytest.raises(InvalidArgument):
        keyfile.encode(SEEDS, keyfile.protect(""))


@pytest.mark.parametrize(
    ("name", "value"), [("n", 2**30), ("n", 3), ("n", 0), ("r", 1000), ("p", 99), ("nonce", "AAAA")]
)
def test_a_file_that_asks_for_too_much_is_refused_before_the_passphrase_is_asked(
    protected: bytes, name: str, value: object
) -> None:
    with pytest.raises(BrokenKeyFile):
        keyfile.unlock(json.dumps({**json.loads(protected), name: value}).encode(), nobody)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"angelia_key":1}', b'{"angelia_key":1,"protection":"rot13"}'])
def test_damage_is_called_damage(content: bytes) -> None:
    with pytest.raises(BrokenKeyFile, match="damaged"):
        keyfile.unlock(content, nobody)


def test_a_newer_version_is_not_guessed_at() -> None:
    with pytest.raises(BrokenKeyFile, match="version 2"):
        keyfile.unlock(b'{"angelia_key":2,"protection":"none","seeds":{}}', nobody)


def test_an_open_file_is_written_again_without_its_passphrase(protected: bytes) -> None:
    opened = keyfile.unlock(protected, lambda: "correct horse")
    changed = keyfile.encode({**opened.seeds, "next.xwing": b"new"}, opened.protection)
    assert keyfile.unlock_again(changed, opened.protection).seeds == {**SEEDS, "next.xwing": b"new"}
    assert keyfile.unlock(changed, lambda: "correct horse").seeds["next.xwing"] == b"new"
    assert b"next" not in changed


def test_a_file_under_another_passphrase_is_not_mistaken_for_the_one_that_was_open(protected: bytes) -> None:
    opened = keyfile.unlock(protected, lambda: "correct horse")
    with pytest.raises(WrongPassphrase, match="another passphrase"):
        keyfile.unlock_again(keyfile.encode(SEEDS, keyfile.protect("other horse")), opened.protection)


def test_what_is_open_does_not_show_its_secrets(protected: bytes) -> None:
    opened = keyfile.unlock(protected, lambda: "correct horse")
    assert opened.protection is not None
    shown = repr(opened) + repr(opened.protection)
    assert repr(SEEDS["ed25519"]) not in shown
    assert repr(opened.protection.key) not in shown
