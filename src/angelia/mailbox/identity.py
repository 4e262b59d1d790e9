"""The agents of this user: one directory each, `<home>/<name>/`, with two files of mode 0600.

`key` holds the private seeds, `agent.json` what others may know: handle, id, public key, key_id and server.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.envelope.ids import KeyType, key_id, valid_handle
from angelia.errors import AlreadyExists, InvalidArgument, NotFound
from angelia.mailbox import keyfile, private_files
from angelia.mailbox.keyfile import BrokenKeyFile, PassphrasePrompt

KEY, CARD = "key", "agent.json"


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What may be known of an agent without opening its key."""

    handle: str
    public_key: bytes
    key_id: UUID
    id: UUID | None = None
    server: str | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """An agent whose private key is at hand."""

    name: str
    handle: str
    key_id: UUID
    key: Ed25519PrivateKey = field(repr=False)
    id: UUID | None = None
    server: str | None = None

    @property
    def public_key(self) -> bytes:
        return self.key.public_key().public_bytes_raw()


def create(home: Path, name: str, passphrase: str | None = None) -> Identity:
    """Make a new agent's keys; an existing agent is never overwritten."""
    _check_name(name)
    private_files.make_directory(home)
    with _locked(home, name, make=True) as directory:
        if private_files.exists(directory, KEY):
            raise AlreadyExists(f"{name} has keys already, and they are never overwritten")
        key = Ed25519PrivateKey.generate()
        public = key.public_key().public_bytes_raw()
        identity = Identity(name=name, handle=name, key_id=key_id(KeyType.ED25519, public), key=key)
        seeds = {keyfile.ED25519: key.private_bytes_raw()}
        private_files.write(directory, KEY, keyfile.encode(seeds, passphrase))
        _write_card(directory, identity)
    return identity


def load(home: Path, name: str, passphrase_prompt: PassphrasePrompt) -> Identity:
    """Open an agent's key."""
    with _locked(home, name) as directory:
        content = private_files.read(directory, KEY, shown=home / name / KEY)
        card = _read_card(directory, home, name)
    seed = keyfile.decode(content, passphrase_prompt).get(keyfile.ED25519, b"")
    if len(seed) != 32:
        raise BrokenKeyFile(f"{home / name / KEY} holds no Ed25519 seed")
    key = Ed25519PrivateKey.from_private_bytes(seed)
    named = key_id(KeyType.ED25519, key.public_key().public_bytes_raw())
    if card is None:
        return Identity(name=name, handle=name, key_id=named, key=key)
    if card.key_id != named:
        raise BrokenKeyFile(
            f"the key of {name} is not the one that {home / name / CARD} names",
            hint="put both files back from the same back-up",
        )
    return Identity(name=name, handle=card.handle, key_id=named, key=key, id=card.id, server=card.server)


def names(home: Path) -> list[str]:
    """The agents of this home, in alphabetical order."""
    if not home.is_dir():
        return []
    return sorted(path.parent.name for path in home.glob(f"*/{KEY}") if valid_handle(path.parent.name))


def card(home: Path, name: str) -> Card | None:
    """An agent's public facts; None when a crash came between its two files."""
    with _locked(home, name) as directory:
        return _read_card(directory, home, name)


def record_registration(home: Path, identity: Identity, *, id: UUID, handle: str, server: str) -> Identity:
    """Keep what a server said about the agent: its id there, and the handle by which others know it."""
    registered = dataclasses.replace(identity, id=id, handle=handle, server=server)
    with _locked(home, identity.name) as directory:
        _write_card(directory, registered)
    return registered


def _check_name(name: str) -> None:
    if not valid_handle(name):
        raise InvalidArgument(
            f"{name!r} cannot be a handle",
            hint="1 to 255 characters a-z 0-9 . _ -, a letter or digit at both ends, and no '..'",
        )


@contextmanager
def _locked(home: Path, name: str, *, make: bool = False) -> Iterator[int]:
    """The agent's directory, for one process at a time, so that two makers cannot both win."""
    _check_name(name)
    try:
        with private_files.opened_directory(home) as above:
            if make and not private_files.exists(above, name):
                _make_below(above, name)
            with private_files.opened_directory(home / name, within=above) as directory:
                fcntl.flock(directory, fcntl.LOCK_EX)
                yield directory
    except NotFound as error:
        raise NotFound(f"there is no agent {name} in {home}", hint=f"angelia agent new {name}") from error


def _make_below(above: int, name: str) -> None:
    try:
        os.mkdir(name, private_files.DIRECTORY_MODE, dir_fd=above)
    except FileExistsError:  # another maker was faster; the lock decides which of us writes the key
        return
    os.fsync(above)


def _read_card(directory: int, home: Path, name: str) -> Card | None:
    if not private_files.exists(directory, CARD):
        return None
    content = private_files.read(directory, CARD, shown=home / name / CARD)
    try:
        return msgspec.json.decode(content, type=Card)
    except msgspec.DecodeError as error:
        raise BrokenKeyFile(f"{home / name / CARD} is damaged: {error}") from error


def _write_card(directory: int, identity: Identity) -> None:
    known = Card(
        handle=identity.handle,
        public_key=identity.public_key,
        key_id=identity.key_id,
        id=identity.id,
        server=identity.server,
    )
    private_files.write(directory, CARD, msgspec.json.format(msgspec.json.encode(known)) + b"\n")
