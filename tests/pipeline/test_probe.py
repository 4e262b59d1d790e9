"""Before anything is entrusted to a store, it is asked whether it can be: every fault is one clear sentence, soon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import s3_servers
from angelia.errors import AngeliaError, SettingsError, StartFailed, Unavailable
from angelia.pipeline.lake.write_probe import probe
from angelia.stores.objects import Objects
from s3_servers import KEYS, ObjectStore


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with s3_servers.moto(tmp_path_factory.mktemp("store")) as store:
        yield store


def refused(url: str, kind: type[AngeliaError]) -> AngeliaError:
    """What is said about a store, which is soon and tells no secret."""
    objects = Objects.at(url, KEYS)
    began = time.monotonic()
    with pytest.raises(kind) as refusal:
        probe(objects)
    assert time.monotonic() - began < 20
    said = f"{refusal.value} {refusal.value.hint} {refusal.value.__cause__} {objects!r}"
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in said
    assert refusal.value.hint
    return refusal.value


def test_a_directory_is_not_asked(tmp_path: Path) -> None:
    probe(Objects.at(str(tmp_path / "lake")))
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_keeps_its_word_is_taken_and_nothing_is_left_behind(store: ObjectStore) -> None:
    probe(Objects.at(store.url("some/where"), KEYS))
    assert store.keys() == []


def test_a_store_that_overwrites_what_it_should_not_is_refused_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with s3_servers.careless(tmp_path) as careless:
        assert "overwrites" in refused(careless.url("lake"), StartFailed).message
        assert careless.keys() == []


def test_a_key_that_the_store_does_not_know_is_named_as_the_fault(tmp_path: Path) -> None:
    with s3_servers.refusing(tmp_path) as refusing:
        assert "refuses our key" in refused(refusing.url("lake"), SettingsError).message


def test_a_bucket_that_is_not_there_is_named_as_the_fault(store: ObjectStore) -> None:
    url = f"s3://nobodys/lake?endpoint={store.endpoint}"
    assert refused(url, SettingsError).message == f"there is no bucket nobodys at {store.endpoint}"


def test_a_store_that_nobody_runs_does_not_keep_us_waiting() -> None:
    url = f"s3://archive/lake?endpoint=http://127.0.0.1:{s3_servers.free_port()}"
    assert "does not answer" in refused(url, Unavailable).message
