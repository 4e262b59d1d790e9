"""Files that agents hand to each other, and the errors of agents that have no server."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from angelia.errors import Conflict, KeyNotFound, NotFound, Unauthenticated

if TYPE_CHECKING:
    from angelia.envelope.bundles import Link
    from angelia.mailbox.mailbox import Mailbox


@contextmanager
def handing_over(path: Path | None) -> Iterator[BinaryIO]:
    """A new file, opened before anything is done that cannot be done twice; without a path, what is written is dropped.
    An existing file is not overwritten; the new one is removed if the block raises."""
    if path is None:
        yield io.BytesIO()
        return
    try:
        file = path.open("xb")
    except FileExistsError as error:
        raise Conflict(f"{path} is there already, and is not overwritten", hint="choose another name") from error
    try:
        with file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def chain_in(file: Path, name: str) -> list[Link]:
    """The bundles of NAME in a file that it handed over; they are not verified yet."""
    from angelia.mailbox import bundle_file

    links = bundle_file.read(file)
    if links[-1].bundle.agent_nhi != name:
        raise NotFound(f"{file} holds the keys of {links[-1].bundle.agent_nhi}, not of {name}")
    return links


def not_known(name: str) -> KeyNotFound:
    """The error of an agent that has no server and no keys of NAME."""
    return KeyNotFound(
        f"the keys of {name} are not known here",
        hint=f"angelia agent register, to ask a server; or its file of `key publish`: angelia key pin {name} FILE",
    )


def refuse_unregistered(mailbox: Mailbox, without: str = "--out FILE") -> None:
    """Raises Unauthenticated for an agent that is not registered; `without` is the way without a server."""
    identity = mailbox.identity
    if identity.id is None:
        raise Unauthenticated(
            f"{identity.handle} is not registered with a server",
            hint=f"angelia agent register --as {identity.name}; without a server: {without}",
        )
