"""The node key: made once, for its owner's eyes only, and never taken from a file that somebody else prepared."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from angelia.audit.model import Checkpoint, SignedEntry
from angelia.envelope.ids import KeyType, key_id
from angelia.errors import DiskFull, StartFailed
from angelia.keys.node_key import NodeKey, load_or_make
from angelia.stores.private_files import write_private
from http_agents import Server
from small_disks import small_disk


def checkpoint(node: NodeKey) -> Checkpoint:
    return Checkpoint(
        position=7,
        entry_hash="ab" * 32,
        node_key_id=node.key_id,
        signed_at=datetime(2026, 11, 15, tzinfo=UTC),
        signature="cd" * 64,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.key"


def test_a_new_key_is_readable_by_its_owner_only(path: Path) -> None:
    old = os.umask(0)
    try:
        load_or_make(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_bytes()) == 32
    assert list(path.parent.iterdir()) == [path]


def test_the_key_is_the_same_at_every_start(path: Path) -> None:
    first, second = load_or_make(path), load_or_make(path)
    assert (first.public_key, first.key_id) == (second.public_key, second.key_id)


def test_two_data_directories_have_two_keys(tmp_path: Path) -> None:
    assert load_or_make(tmp_path / "a").public_key != load_or_make(tmp_path / "b").public_key


def test_it_signs_what_its_public_half_verifies(path: Path) -> None:
    node = load_or_make(path)
    public = Ed25519PublicKey.from_public_bytes(node.public_key)
    public.verify(node.sign(b"data"), b"data")
    with pytest.raises(InvalidSignature):
        public.verify(node.sign(b"data"), b"other data")
    assert node.key_id == key_id(KeyType.ED25519, node.public_key)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o666, 0o777])
def test_a_key_that_others_may_touch_is_refused(path: Path, mode: int) -> None:
    load_or_make(path)
    path.chmod(mode)
    with pytest.raises(StartFailed, match="open to others") as caught:
        load_or_make(path)
    assert caught.value.hint == f"chmod 600 {path}"


@pytest.mark.parametrize("damage", [b"", b"x" * 31, b"x" * 33, b"x" * 1000])
def test_a_damaged_key_is_refused_and_left_as_it_is(path: Path, damage: bytes) -> None:
    path.write_bytes(damage)
    path.chmod(0o600)
    with pytest.raises(StartFailed, match="damaged"):
        load_or_make(path)
    assert path.read_bytes() == damage


@pytest.mark.parametrize("target", ["there", "not there"])
def test_a_link_is_refused_and_not_followed(tmp_path: Path, path: Path, target: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    if target == "there":
        load_or_make(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(StartFailed, match="cannot be read"):
        load_or_make(path)
    assert elsewhere.exists() == (target == "there")


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["directory", "pipe"])
def test_what_is_no_file_is_refused(path: Path, make) -> None:
    make(path, 0o600)
    with pytest.raises(StartFailed):
        load_or_make(path)


async def test_the_public_half_is_at_v1_node(start, tmp_path: Path) -> None:
    server: Server = await start()
    answer = (await server.get("/v1/node")).json()
    node = load_or_make(tmp_path / "node.key")
    assert answer["key_id"] == str(node.key_id)
    assert (tmp_path / "node.key").read_bytes().hex() not in str(answer)


def test_the_node_remembers_what_it_signed_in_a_file_of_its_own(tmp_path: Path) -> None:
    node = load_or_make(tmp_path / "node.key")
    assert node.signed() is None
    node.remember(checkpoint(node))
    again = load_or_make(tmp_path / "node.key")
    assert (again.signed(), again.checkpoint()) == (SignedEntry(7, "ab" * 32), checkpoint(node))
    assert (tmp_path / "node.signed").stat().st_mode & 0o777 == 0o600


def test_what_the_build_before_remembered_is_known_without_a_signature(tmp_path: Path) -> None:
    write_private(tmp_path / "node.signed", b'{"position":7,"entry_hash":"' + b"ab" * 32 + b'"}')
    node = load_or_make(tmp_path / "node.key")
    assert (node.signed(), node.checkpoint()) == (SignedEntry(7, "ab" * 32), None)


def test_what_another_key_signed_is_remembered_but_no_checkpoint_of_this_one(tmp_path: Path) -> None:
    node = load_or_make(tmp_path / "node.key")
    node.remember(checkpoint(node))
    (tmp_path / "node.key").unlink()
    other = load_or_make(tmp_path / "node.key")
    assert (other.signed(), other.checkpoint()) == (SignedEntry(7, "ab" * 32), None)


def test_a_memory_without_room_is_told_once_and_again_when_there_is_some(directory: Path) -> None:
    with small_disk(directory, 1) as disk, structlog.testing.capture_logs() as lines:
        node = load_or_make(disk.path / "node.key")
        with disk.filled():
            for _ in range(3):
                with pytest.raises(DiskFull, match=r"node.signed cannot be written: No space left on device"):
                    node.remember(checkpoint(node))
        node.remember(checkpoint(node))
        assert node.checkpoint() == checkpoint(node)
        assert sorted(path.name for path in disk.path.iterdir()) == ["node.key", "node.signed"]
    assert [line["event"] for line in lines] == [
        "the disk is full: the node cannot remember what it signed",
        "the node remembers again what it signed",
    ]


@pytest.mark.parametrize("content", [b"", b"{}", b"[7]", b'{"position": "x"}'])
def test_a_damaged_memory_is_told_at_the_start(tmp_path: Path, content: bytes) -> None:
    node = load_or_make(tmp_path / "node.key")
    node.remember(checkpoint(node))
    (tmp_path / "node.signed").write_bytes(content)
    with pytest.raises(StartFailed, match="damaged"):
        load_or_make(tmp_path / "node.key")
