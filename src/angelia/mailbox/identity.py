"""The agents of this user: one directory each, `<home>/<name>/`, with two files of mode 0600 and its mailbox.

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

from angelia.envelope import crypto_support
from angelia.envelope.ids import KeyType, key_id, valid_handle
from angelia.envelope.kem import SEED_BYTES, KemPrivateKey
from angelia.envelope.signing import ED25519_BYTES, ML_DSA_SEED, SigningPair
from angelia.errors import AlreadyExists, InvalidArgument, NotFound
from angelia.mailbox import keyfile, private_files
from angelia.mailbox.keyfile import (
    ED25519,
    LOCAL,
    LOCAL_BYTES,
    ML_DSA,
    NEXT,
    XWING,
    BrokenKeyFile,
    PassphrasePrompt,
    Unlocked,
)

KEY, CARD = "key", "agent.json"
_LENGTHS = {ED25519: ED25519_BYTES, ML_DSA: ML_DSA_SEED, XWING: SEED_BYTES[KeyType.XWING], LOCAL: LOCAL_BYTES}


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What may be known of an agent without opening its key."""

    handle: str
    public_key: bytes
    key_id: UUID
    id: UUID | None = None
    server: str | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """An agent whose private keys are at hand."""

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
    """An agent's key file while nobody else can change it."""

    def __init__(self, directory: int, home: Path, identity: Identity) -> None:
        self._directory = directory
        self._home = home
        content = private_files.read(directory, KEY, shown=home / identity.name / KEY)
        opened = keyfile.unlock_again(content, identity.unlocked.protection)
        self.identity = _with_seeds(_as_on_card(directory, home, identity), opened)

    @property
    def seeds(self) -> dict[str, bytes]:
        return dict(self.identity.unlocked.seeds)

    def write(self, seeds: keyfile.Seeds) -> Identity:
        """Replace all seeds at once, under the protection that the file has.

        The card is first to name a new pair: a card that names the `next` pair can be read, one that names a pair
        that is gone cannot.
        """
        protection = self.identity.unlocked.protection
        changed = _with_seeds(self.identity, Unlocked(seeds, protection))
        if changed.key_id != self.identity.key_id:
            _write_card(self._directory, changed)
        private_files.write(self._directory, KEY, keyfile.encode_again(seeds, protection))
        self.identity = changed
        return changed


def create(home: Path, name: str, passphrase: str | None = None) -> Identity:
    """Make a new agent's keys; an existing agent is never overwritten."""
    _check_name(name)
    crypto_support.require()
    protection = None if passphrase is None else keyfile.protection(passphrase)
    private_files.make_directory(home)
    with _locked(home, name, make=True) as directory:
        if private_files.exists(directory, KEY):
            raise AlreadyExists(f"{name} has keys already, and they are never overwritten")
        seeds = _completed({})
        identity = Identity(
            name, name, SigningPair.from_seeds(seeds[ED25519], seeds[ML_DSA]), Unlocked(seeds, protection)
        )
        private_files.write(directory, KEY, keyfile.encode_again(seeds, protection))
        _write_card(directory, identity)
    return identity


def load(home: Path, name: str, passphrase_prompt: PassphrasePrompt) -> Identity:
    """Open an agent's keys. The file of an older release lacks some; it gets them here, before anything needs them."""
    crypto_support.require()
    with _locked(home, name) as directory:
        content = private_files.read(directory, KEY, shown=home / name / KEY)
    opened = keyfile.unlock(content, passphrase_prompt)
    with _locked(home, name) as directory:
        # Asking may have taken minutes: what counts is what lies there now.
        content = private_files.read(directory, KEY, shown=home / name / KEY)
        opened = keyfile.unlock_again(content, opened.protection)
        _check_seeds(opened.seeds, home / name / KEY)
        card = _read_card(directory, home, name)
        _check_card(card, opened.seeds, home, name)
        seeds = _completed(opened.seeds)
        if seeds != opened.seeds:
            private_files.write(directory, KEY, keyfile.encode_again(seeds, opened.protection))
    pair = SigningPair.from_seeds(seeds[ED25519], seeds[ML_DSA])
    unlocked = Unlocked(seeds, opened.protection)
    if card is None:
        return Identity(name, name, pair, unlocked)
    return Identity(name, card.handle, pair, unlocked, card.id, card.server)


@contextmanager
def key_file(home: Path, identity: Identity) -> Iterator[KeyFile]:
    """The key file of an open agent, for one process at a time, as it is now."""
    with _locked(home, identity.name) as directory:
        yield KeyFile(directory, home, identity)


def present_seeds(home: Path, identity: Identity) -> keyfile.Seeds:
    """The seeds of an open agent's key file as it is now. Without the lock, for a caller that holds the database's: the
    file is replaced whole."""
    with private_files.opened_directory(home / identity.name) as directory:
        content = private_files.read(directory, KEY, shown=home / identity.name / KEY)
    return keyfile.unlock_again(content, identity.unlocked.protection).seeds


def next_of(identity: Identity) -> Identity:
    """The agent as it will be when its rotation is finished."""
    seeds = identity.unlocked.seeds
    pair = SigningPair.from_seeds(seeds[NEXT + ED25519], seeds[NEXT + ML_DSA])
    return dataclasses.replace(identity, pair=pair)


def names(home: Path) -> list[str]:
    """The agents of this home, in alphabetical order."""
    if not home.is_dir():
        return []
    return sorted(path.parent.name for path in home.glob(f"*/{KEY}") if valid_handle(path.parent.name))


def local_name(home: Path, handle: str | None) -> str | None:
    """The local name of an agent of this home, found by that name or by its handle; without either, that of the only
    one. None if there is no such agent, or more than one."""
    known = names(home)
    if handle is None:
        return known[0] if len(known) == 1 else None
    if handle in known:
        return handle
    return next((name for name in known if (found := card(home, name)) is not None and found.handle == handle), None)


def card(home: Path, name: str) -> Card | None:
    """An agent's public facts; None when a crash came between its two files."""
    with _locked(home, name) as directory:
        return _read_card(directory, home, name)


def record_registration(home: Path, identity: Identity, *, id: UUID, handle: str, server: str) -> Identity:
    """Keep what a server said about the agent: its id there, and the handle by which others know it."""
    with _locked(home, identity.name) as directory:
        present = KeyFile(directory, home, identity).identity
        registered = dataclasses.replace(present, id=id, handle=handle, server=server)
        _write_card(directory, registered)
    return registered


def _completed(seeds: keyfile.Seeds) -> dict[str, bytes]:
    """The seeds with those made that are not there yet."""
    made = {LOCAL: os.urandom(LOCAL_BYTES), XWING: KemPrivateKey.generate(KeyType.XWING).seed}
    made[ED25519], made[ML_DSA] = SigningPair.generate().seeds
    return made | dict(seeds)


def _with_seeds(identity: Identity, opened: Unlocked) -> Identity:
    pair = SigningPair.from_seeds(opened.seeds[ED25519], opened.seeds[ML_DSA])
    return dataclasses.replace(identity, pair=pair, unlocked=opened)


def _as_on_card(directory: int, home: Path, identity: Identity) -> Identity:
    """The agent as its card has it now: another process may have registered it since it was opened."""
    card = _read_card(directory, home, identity.name)
    if card is None:
        return identity
    return dataclasses.replace(identity, handle=card.handle, id=card.id, server=card.server)


def _check_seeds(seeds: keyfile.Seeds, shown: Path) -> None:
    if ED25519 not in seeds:
        raise BrokenKeyFile(f"{shown} holds no Ed25519 seed")
    for name, seed in seeds.items():
        if len(seed) != _LENGTHS.get(name.removeprefix(NEXT), len(seed)):
            raise BrokenKeyFile(f"{shown} is damaged: its seed {name[:40]!r} has {len(seed)} bytes")


def _check_card(card: Card | None, seeds: keyfile.Seeds, home: Path, name: str) -> None:
    if card is None:
        return
    present = [seeds[one] for one in (ED25519, NEXT + ED25519) if one in seeds]
    if card.key_id not in [_key_id_of(seed) for seed in present]:
        raise BrokenKeyFile(
            f"the key of {name} is not the one that {home / name / CARD} names",
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
    """The agent's directory, for one process at a time, so that two makers cannot both win."""
    _check_name(name)
    try:
        with private_files.opened_directory(home) as above:
            if make and not private_files.exists(above, name):
                with private_files.writing(home / name):
                    _make_below(above, name)
            with private_files.opened_directory(home / name, within=above) as directory:
                fcntl.flock(directory, fcntl.LOCK_EX)
                with private_files.writing(home / name):
                    private_files.sweep(directory, KEY, CARD)
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
