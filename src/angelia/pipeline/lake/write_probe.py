"""Asks a store, before anything is entrusted to it, whether it keeps two writers from overwriting each other."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from angelia.errors import SettingsError, StartFailed, Unavailable
from angelia.stores.objects import Objects

if TYPE_CHECKING:
    from obstore.store import S3Config

_PATIENCE = timedelta(seconds=5)  # for one answer; a store that is slower now is not one to begin a run with


def probe(objects: Objects) -> None:
    """The same object is made twice, each time on the condition that it is not there: the second must be refused.

    By two puts and not by two commits: delta-rs looks before it commits, so one after the other always works, on
    any store. A store that ignores the condition loses what two writers commit at the same time, without a word."""
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
        # Under object lock it stays: an empty object, and the key need not be one that may delete.
        with suppress(BaseError, FileNotFoundError):
            obstore.delete(store, name)
    raise StartFailed(
        f"the store of {objects.root} overwrites what is there when it is asked not to",
        hint="the archive needs conditional puts (If-None-Match): take another store, or a newer version of it",
    )


def check_answers(objects: Objects) -> None:
    """Whether a store can be read at all, asked by a key that need not be one that may write."""
    if not objects.remote:
        return
    with _in_our_words(objects):
        next(iter(obstore.list(_store(objects), prefix="_probe", chunk_size=1)), None)


@contextmanager
def _in_our_words(objects: Objects) -> Iterator[None]:
    try:
        yield
    # What the store answered is the cause, and not in the sentence: it may repeat what it was sent.
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
    config: S3Config = {"region": given["AWS_REGION"]}
    if "AWS_ACCESS_KEY_ID" in given:
        config["access_key_id"] = given["AWS_ACCESS_KEY_ID"]
        config["secret_access_key"] = given.get("AWS_SECRET_ACCESS_KEY", "")
    if "AWS_SESSION_TOKEN" in given:
        config["session_token"] = given["AWS_SESSION_TOKEN"]
    if "AWS_ENDPOINT_URL" in given:
        config["endpoint"] = given["AWS_ENDPOINT_URL"]
    return S3Store(
        objects.bucket,
        prefix=objects.prefix or None,
        config=config,
        client_options={
            "allow_http": "AWS_ALLOW_HTTP" in given,
            "timeout": _PATIENCE,
            "connect_timeout": _PATIENCE,
        },
        retry_config={"max_retries": 1, "retry_timeout": 2 * _PATIENCE},
    )
