"""Checks that an object store keeps two writers from overwriting each other, before anything is stored in it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from angelia.errors import SettingsError, StartFailed, Unavailable
from angelia.stores.objects import Objects

if TYPE_CHECKING:
    from obstore.store import S3Config

_PATIENCE = timedelta(seconds=5)  # for one answer; with a slower store no run should begin


def probe(objects: Objects) -> None:
    """Puts the same object twice on the condition that it does not exist; raises StartFailed if the second is not
    refused.

    Two commits would prove nothing: delta-rs looks before it commits. A store that ignores the condition loses one of
    two concurrent commits silently."""
    if not objects.remote:
        return
    store, name = _store(objects), f"_probe/{uuid.uuid4()}"
    try:
        with _in_our_words(objects):
            obstore.put(store, name, b"", mode="create")
            try:
                obstore.put(store, name, b"", mode="create")
            except AlreadyExistsError:
                return
    finally:
        # Under object lock, or if the key may not delete, an empty object stays.
        with suppress(BaseError, FileNotFoundError):
            obstore.delete(store, name)
    raise StartFailed(
        f"the store of {objects.root} overwrites what is there when it is asked not to",
        hint="the archive needs conditional puts (If-None-Match): take another store, or a newer version of it",
    )


def check_answers(objects: Objects) -> None:
    """Raises if a store cannot be read; the key need not be one that may write."""
    if not objects.remote:
        return
    with _in_our_words(objects):
        next(iter(obstore.list(_store(objects), prefix="_probe", chunk_size=1)), None)


@contextmanager
def _in_our_words(objects: Objects) -> Iterator[None]:
    try:
        yield
    # The store's answer is the cause, not part of the message: it may repeat secrets of the request.
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise SettingsError(
            f"the store of {objects.root} refuses our key",
            hint="is AWS_ACCESS_KEY_ID with its AWS_SECRET_ACCESS_KEY right, and may it read and write there?",
        ) from error
    except FileNotFoundError as error:
        raise SettingsError(
            f"there is no bucket {objects.bucket} at {objects.endpoint}",
            hint="make the bucket, or name another in lake",
        ) from error
    except BaseError as error:
        raise Unavailable(
            f"the store at {objects.endpoint} does not answer", hint="is it running, and is `endpoint` in lake right?"
        ) from error


def _store(objects: Objects) -> S3Store:
    given = objects.options
    config = {name: value for name, value in given.items() if name.startswith("AWS_") and name != "AWS_ALLOW_HTTP"}
    if "AWS_ACCESS_KEY_ID" in config:
        config.setdefault("AWS_SECRET_ACCESS_KEY", "")
    return S3Store(
        objects.bucket,
        prefix=objects.prefix or None,
        config=cast("S3Config", config),  # it takes the names of the environment, too
        client_options={"allow_http": "AWS_ALLOW_HTTP" in given, "timeout": _PATIENCE, "connect_timeout": _PATIENCE},
        retry_config={"max_retries": 1, "retry_timeout": 2 * _PATIENCE},
    )
