"""The node key: one Ed25519 key per data directory, with which this server signs its audit checkpoints."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.audit.model import Checkpoint, SignedEntry
from angelia.envelope.ids import KeyType, key_id
from angelia.errors import DiskFull, StartFailed, Unavailable
from angelia.stores.embedded.private_files import read_private, write_private

_KEY = "node.key"
_MEMORY = "node.signed"
_MEMORY_BYTES = 1000
log = structlog.get_logger(__name__)


class NodeIdentity:
    """The public half of the node key; web processes have only this."""

    def __init__(self, public_key: bytes, data_dir: Path) -> None:
        self.public_key = public_key
        self.key_id = key_id(KeyType.ED25519, public_key)
        self._memory = data_dir / _MEMORY

    def signed(self) -> SignedEntry | None:
        """The last entry of the audit chain that this node signed. Read each time: another process signs."""
        try:
            return msgspec.json.decode(read_private(self._memory, _MEMORY_BYTES), type=SignedEntry)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise StartFailed(
                f"{self._memory} is damaged: it must say what this node signed last",
                hint="restore it from a backup; or, if `angelia audit verify` finds the chain sound, remove it",
            ) from error


class NodeKey(NodeIdentity):
    """Signs audit checkpoints, and remembers the last one in a file beside the key."""

    def __init__(self, key: Ed25519PrivateKey, data_dir: Path) -> None:
        super().__init__(key.public_key().public_bytes_raw(), data_dir)
        self._key = key
        self._full = False

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)

    def checkpoint(self) -> Checkpoint | None:
        """The last checkpoint that this key signed; None also for a file of an older build."""
        try:
            found = msgspec.json.decode(read_private(self._memory, _MEMORY_BYTES), type=Checkpoint)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return found if found.node_key_id == self.key_id else None

    def remember(self, checkpoint: Checkpoint) -> None:
        try:
            write_private(self._memory, msgspec.json.encode(checkpoint))
        except OSError as error:
            told = f"{self._memory} cannot be written: {error.strerror}"
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise Unavailable(told, hint="until it can, the node does not know what it signed") from error
            self._tell(full=True)
            raise DiskFull(told, hint="make room in the data directory; it is tried again every second") from error
        self._tell(full=False)

    def _tell(self, *, full: bool) -> None:
        """Logs once that the disk is full, and once that it is not any more."""
        if full and not self._full:
            log.error("the disk is full: the node cannot remember what it signed", directory=str(self._memory.parent))
        elif self._full and not full:
            log.warning("the node remembers again what it signed")
        self._full = full


def public_key_in(data_dir: Path) -> bytes | None:
    """The public half of the key in a data directory; None if there is no key, or none that this user may read."""
    try:
        seed = read_private(data_dir / _KEY, 33)
    except (OSError, StartFailed):
        return None
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw() if len(seed) == 32 else None


def load_or_make(path: Path) -> NodeKey:
    """The node key of a file, which is made with mode 0600 at the first start."""
    try:
        seed = read_private(path, 33)
    except FileNotFoundError:
        key = Ed25519PrivateKey.generate()
        write_private(path, key.private_bytes_raw())
    else:
        if len(seed) != 32:
            raise StartFailed(f"the node key {path} is damaged: it must hold 32 bytes", hint="restore it from a backup")
        key = Ed25519PrivateKey.from_private_bytes(seed)
    node = NodeKey(key, path.parent)
    node.signed()  # raises at the start if the file beside the key is damaged
    return node
