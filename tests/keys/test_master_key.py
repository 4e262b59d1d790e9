"""The master key: 32 bytes for its owner's eyes only, which wrap data keys so that nothing of them shows."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.errors import StartFailed
from angelia.keys.master_key import CorruptRecord, FileKeyProvider, KeyProvider, find, load, make, next_of, promote

KEY, DATA_KEY, CONTEXT = bytes(range(32)), b"d" * 32, b"context"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "master.key"


def test_a_provider_is_three_calls_and_no_more() -> None:
    calls = {name for name in vars(KeyProvider) if not name.startswith("_")}
    assert calls == {"master_key_id", "wrap", "unwrap"}
    assert {name for name in vars(FileKeyProvider) if not name.startswith("_")} == calls


# The file.


def test_a_new_key_is_readable_by_its_owner_only(path: Path) -> None:
    old = os.umask(0)
    try:
        make(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_bytes()) == 32
    assert list(path.parent.iterdir()) == [path]


def test_the_key_is_the_same_at_every_start(path: Path) -> None:
    wrapped = make(path).wrap(DATA_KEY, CONTEXT)
    again = load(path)
    assert again.unwrap(wrapped, CONTEXT) == DATA_KEY
    assert again.master_key_id() == load(path).master_key_id()


def test_two_keys_have_two_ids(tmp_path: Path) -> None:
    assert make(tmp_path / "a").master_key_id() != make(tmp_path / "b").master_key_id()


def test_a_key_that_must_be_there_is_never_made(path: Path) -> None:
    assert find(path) is None
    with pytest.raises(StartFailed, match="missing") as caught:
        load(path)
    assert "back-up" in caught.value.hint
    assert not path.exists()


@pytest.mark.parametrize("damage", [b"", b"x" * 31, b"x" * 33, b"x" * 1000])
def test_a_damaged_key_is_refused_and_left_as_it_is(path: Path, damage: bytes) -> None:
    path.write_bytes(damage)
    path.chmod(0o600)
    with pytest.raises(StartFailed, match="damaged") as caught:
        load(path)
    assert "back-up" in caught.value.hint
    assert path.read_bytes() == damage


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_key_that_others_may_touch_is_refused(path: Path, mode: int) -> None:
    make(path)
    path.chmod(mode)
    with pytest.raises(StartFailed, match="open to others") as caught:
        load(path)
    assert caught.value.hint == f"chmod 600 {path}"


def test_a_link_is_refused_and_not_followed(tmp_path: Path, path: Path) -> None:
    make(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartFailed, match="cannot be read"):
        find(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="cannot be written") as caught:
        make(tmp_path / "none" / "master.key")
    assert "master_key_file" in caught.value.hint


def test_the_next_key_takes_the_place_of_the_present_one(path: Path) -> None:
    make(path)
    following = make(next_of(path))
    assert next_of(path).name == "master.key.next"
    promote(path)
    assert load(path).master_key_id() == following.master_key_id()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not next_of(path).exists()


def test_a_next_key_that_is_not_there_leaves_the_present_one(path: Path) -> None:
    present = make(path)
    with pytest.raises(StartFailed, match="cannot be replaced"):
        promote(path)
    assert load(path).master_key_id() == present.master_key_id()


# The id.


def test_the_id_is_a_hash_under_a_label_of_its_own() -> None:
    expected = hashlib.sha256(b"angelia/v1/master-key-id\0" + KEY).hexdigest()[:32]
    assert FileKeyProvider(KEY).master_key_id() == expected


def test_neither_the_id_nor_the_text_of_a_provider_tells_the_key() -> None:
    held = FileKeyProvider(KEY)
    for text in (held.master_key_id(), repr(held), str(held), str(vars(held))):
        assert KEY.hex()[:16] not in text
        assert repr(KEY)[2:20] not in text


# Wrapping.


@given(key=st.binary(min_size=32, max_size=32), data_key=st.binary(min_size=32, max_size=32), context=st.binary())
def test_what_is_wrapped_is_unwrapped_by_the_same_key_and_context(key: bytes, data_key: bytes, context: bytes) -> None:
    held = FileKeyProvider(key)
    wrapped = held.wrap(data_key, context)
    assert held.unwrap(wrapped, context) == data_key
    assert len(wrapped) == 12 + 32 + 16
    assert data_key not in wrapped


def test_the_same_key_is_never_wrapped_alike() -> None:
    held = FileKeyProvider(KEY)
    assert len({held.wrap(DATA_KEY, CONTEXT)[:12] for _ in range(100)}) == 100


def test_another_context_unwraps_nothing() -> None:
    held = FileKeyProvider(KEY)
    wrapped = held.wrap(DATA_KEY, CONTEXT)
    for other in (b"", b"contex", b"context\0", b"angelia/v1/wrapped-key\0context"):
        with pytest.raises(CorruptRecord):
            held.unwrap(wrapped, other)


def test_another_master_key_unwraps_nothing() -> None:
    wrapped = FileKeyProvider(KEY).wrap(DATA_KEY, CONTEXT)
    with pytest.raises(CorruptRecord):
        FileKeyProvider(bytes(32)).unwrap(wrapped, CONTEXT)


def test_one_flipped_bit_or_lost_byte_unwraps_nothing() -> None:
    held = FileKeyProvider(KEY)
    wrapped = held.wrap(DATA_KEY, CONTEXT)
    damaged = [wrapped[:n] + bytes([wrapped[n] ^ 1]) + wrapped[n + 1 :] for n in range(len(wrapped))]
    damaged += [wrapped[:n] for n in range(len(wrapped))] + [wrapped + b"\0"]
    for each in damaged:
        with pytest.raises(CorruptRecord):
            held.unwrap(each, CONTEXT)
