"""The agents of this user: one directory each, `<home>/<name>/`, with two files of mode 0600 and its mailbox.

`key` holds the private seeds, `agent.json` the public identity: handle, id, public key, key_id and server.
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

from angelia.envelope import crypto_support
from angelia.envelope.ids import KeyType, key_id, valid_handle
from angelia.envelope.signing import SigningPair
from angelia.errors import AlreadyExists, InvalidArgument, NotFound
from angelia.mailbox import keyfile, private_files
from angelia.mailbox.agent_names import KEY, names
from angelia.mailbox.bundle_signing import next_pair
from angelia.mailbox.keyfile import ED25519, ML_DSA, NEXT, SEED_LENGTHS, BrokenKeyFile, PassphrasePrompt, Unlocked

PUBLIC = "agent.json"


class PublicIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `agent.json`: what can be read without the key's passphrase."""

    handle: str
    public_key: bytes
    key_id: UUID
    id: UUID | None = None
    server: str | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """An agent with its private keys."""

    name: str
    handle: str
    pair: SigningPair = field(repr=False)
    unlocked: Unlocked = field(repr=False)
    id: UUID | None = None
    server: str | None = None

    @property
    def key(self) -> Ed25519PrivateKey:
        """The half of the pair that signs requests."""
        return self.pair.request_key

    @property
    def key_id(self) -> UUID:
        return key_id(KeyType.ED25519, self.public_key)

    @property
    def public_key(self) -> bytes:
        return self.pair.public.ed25519


class KeyFile:
    """An agent's key file, locked against other processes."""

    def __init__(self, directory: int, home: Path, identity: Identity) -> None:
        self._directory = directory
        self._home = home
        content = private_files.read(directory, KEY, shown=home / identity.name / KEY)
        opened = keyfile.unlock_again(content, identity.unlocked.protection)
        # Another process may have registered the agent meanwhile.
        present = _as_published(identity, _read_public(directory, home, identity.name))
        self.identity = _with_seeds(present, opened)

    @property
    def seeds(self) -> dict[str, bytes]:
        return dict(self.identity.unlocked.seeds)

    def write(self, seeds: keyfile.Seeds) -> Identity:
        """Replaces all seeds at once, under the file's passphrase. Returns the changed identity.

        `agent.json` names a new pair first: one that names the `next` pair can be read, one that names a pair that is
        gone cannot.
        """
        protection = self.identity.unlocked.protection
        changed = _with_seeds(self.identity, Unlocked(seeds, protection))
        if changed.key_id != self.identity.key_id:
            _write_public(self._directory, changed)
        private_files.write(self._directory, KEY, keyfile.encode(seeds, protection))
        self.identity = changed
        return changed


def create(home: Path, name: str, passphrase: str | None = None, *, ed25519: bytes | None = None) -> Identity:
    """Makes a new agent's keys and returns its identity; an existing agent is never overwritten. `ed25519` is the seed
    of a key that the agent has already."""
    _check_name(name)
    crypto_support.require()
    protection = keyfile.protect(passphrase)
    private_files.make_directory(home)
    with _locked(home, name, make=True) as directory:
        if private_files.exists(directory, KEY):
            raise AlreadyExists(f"{name} has keys already, and they are never overwritten")
        seeds = _completed({} if ed25519 is None else {ED25519: ed25519})
        identity = Identity(name, name, _signing_pair(seeds), Unlocked(seeds, protection))
        private_files.write(directory, KEY, keyfile.encode(seeds, protection))
        _write_public(directory, identity)
    return identity


def load(home: Path, name: str, passphrase_prompt: PassphrasePrompt) -> Identity:
    """Opens an agent's keys and returns its identity. A file of an older release lacks some seeds; they are made here,
    before anything needs them."""
    crypto_support.require()
    with _locked(home, name) as directory:
        content = private_files.read(directory, KEY, shown=home / name / KEY)
    opened = keyfile.unlock(content, passphrase_prompt)
    with _locked(home, name) as directory:
        # The passphrase prompt may have taken minutes, so the file is read again.
        content = private_files.read(directory, KEY, shown=home / name / KEY)
        opened = keyfile.unlock_again(content, opened.protection)
        _check_seeds(opened.seeds, home / name / KEY)
        public = _read_public(directory, home, name)
        _check_public(public, opened.seeds, home, name)
        seeds = _completed(opened.seeds)
        if seeds != opened.seeds:
            private_files.write(directory, KEY, keyfile.encode(seeds, opened.protection))
    return _as_published(Identity(name, name, _signing_pair(seeds), Unlocked(seeds, opened.protection)), public)


@contextmanager
def key_file(home: Path, identity: Identity) -> Iterator[KeyFile]:
    """The key file of an open agent as it is now, locked against other processes."""
    with _locked(home, identity.name) as directory:
        yield KeyFile(directory, home, identity)


def present_seeds(home: Path, identity: Identity) -> keyfile.Seeds:
    """Returns the seeds of an open agent's key file as it is now. It takes no lock, since its caller holds the
    database's; the file is only ever replaced whole."""
    with private_files.opened_directory(home / identity.name) as directory:
        content = private_files.read(directory, KEY, shown=home / identity.name / KEY)
    return keyfile.unlock_again(content, identity.unlocked.protection).seeds


def next_of(identity: Identity) -> Identity:
    """Returns the identity as it will be when its rotation is finished."""
    return dataclasses.replace(identity, pair=next_pair(identity.unlocked.seeds))


def local_name(home: Path, handle: str | None) -> str | None:
    """Returns the local name of an agent of this home, found by that name or by its handle; without either, that of
    the only one. None if there is no such agent, or more than one."""
    known = names(home)
    if handle is None:
        return known[0] if len(known) == 1 else None
    if handle in known:
        return handle
    found = ((name, public_identity(home, name)) for name in known)
    return next((name for name, one in found if one is not None and one.handle == handle), None)


def public_identity(home: Path, name: str) -> PublicIdentity | None:
    """Returns an agent's public identity; None when a crash came between the writing of its two files."""
    with _locked(home, name) as directory:
        return _read_public(directory, home, name)


def record_registration(home: Path, identity: Identity, *, id: UUID, handle: str, server: str) -> Identity:
    """Stores the id and the handle that a server gave the agent. Returns the registered identity."""
    with _locked(home, identity.name) as directory:
        present = KeyFile(directory, home, identity).identity
        registered = dataclasses.replace(present, id=id, handle=handle, server=server)
        _write_public(directory, registered)
    return registered


def _completed(seeds: keyfile.Seeds) -> dict[str, bytes]:
    """Returns the seeds, with new ones for those that are missing."""
    return {name: os.urandom(length) for name, length in SEED_LENGTHS.items()} | dict(seeds)


def _with_seeds(identity: Identity, opened: Unlocked) -> Identity:
    return dataclasses.replace(identity, pair=_signing_pair(opened.seeds), unlocked=opened)


def _signing_pair(seeds: keyfile.Seeds) -> SigningPair:
    return SigningPair.from_seeds(seeds[ED25519], seeds[ML_DSA])


def _as_published(identity: Identity, public: PublicIdentity | None) -> Identity:
    """Returns the identity as `agent.json` has it."""
    if public is None:
        return identity
    return dataclasses.replace(identity, handle=public.handle, id=public.id, server=public.server)


def _check_seeds(seeds: keyfile.Seeds, shown: Path) -> None:
    if ED25519 not in seeds:
        raise BrokenKeyFile(f"{shown} holds no Ed25519 seed")
    for name, seed in seeds.items():
        if len(seed) != SEED_LENGTHS.get(name.removeprefix(NEXT), len(seed)):
            raise BrokenKeyFile(f"{shown} is damaged: its seed {name[:40]!r} has {len(seed)} bytes")


def _check_public(public: PublicIdentity | None, seeds: keyfile.Seeds, home: Path, name: str) -> None:
    if public is None:
        return
    present = [seeds[one] for one in (ED25519, NEXT + ED25519) if one in seeds]
    if public.key_id not in [_key_id_of(seed) for seed in present]:
        raise BrokenKeyFile(
            f"the key of {name} is not the one that {home / name / PUBLIC} names",
            hint="put both files back from the same back-up",
        )


def _key_id_of(seed: bytes) -> UUID:
    return key_id(KeyType.ED25519, Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw())


def _check_name(name: str) -> None:
    if not valid_handle(name):
        raise InvalidArgument(
            f"{name!r} cannot be a handle",
            hint="1 to 255 characters a-z 0-9 . _ -, a letter or digit at both ends, and no '..'",
        )


@contextmanager
def _locked(home: Path, name: str, *, make: bool = False) -> Iterator[int]:
    """The descriptor of an agent's directory, locked, so that only one process makes its keys."""
    _check_name(name)
    try:
        with private_files.opened_directory(home) as above:
            if make and not private_files.exists(above, name):
                # If another process was faster, the lock decides which one goes on.
                private_files.make_below(home / name)
            with private_files.opened_directory(home / name, within=above) as directory:
                fcntl.flock(directory, fcntl.LOCK_EX)
                with private_files.writing(home / name):
                    private_files.sweep(directory, KEY, PUBLIC)
                    yield directory
    except NotFound as error:
        raise NotFound(f"there is no agent {name} in {home}", hint=f"angelia agent new {name}") from error


def _read_public(directory: int, home: Path, name: str) -> PublicIdentity | None:
    if not private_files.exists(directory, PUBLIC):
        return None
    content = private_files.read(directory, PUBLIC, shown=home / name / PUBLIC)
    try:
        return msgspec.json.decode(content, type=PublicIdentity)
    except msgspec.DecodeError as error:
        raise BrokenKeyFile(f"{home / name / PUBLIC} is damaged: {error}") from error


def _write_public(directory: int, identity: Identity) -> None:
    public = msgspec.convert(identity, PublicIdentity, from_attributes=True)
    private_files.write(directory, PUBLIC, msgspec.json.format(msgspec.json.encode(public)) + b"\n")
