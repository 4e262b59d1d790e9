"""One URL says where the archive lies; keys come from the environment and go into no message."""

from __future__ import annotations

from pathlib import Path

import pytest

from angelia.errors import SettingsError
from angelia.stores.objects import Objects

KEYS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "very/secret"}


@pytest.mark.parametrize("url", ["/var/la ke?#", "/var/la ke?#/"])
def test_a_directory_is_named_by_its_path(url: str) -> None:
    objects = Objects.at(url, KEYS)
    assert (objects.root, objects.remote, dict(objects.options)) == ("/var/la ke?#", False, {})
    assert objects.path(objects.table("t")) == "/var/la ke?#/t"
    assert Objects.at("file:///var/lake", KEYS).root == "/var/lake"


def test_a_bucket_is_named_with_its_prefix_endpoint_and_region() -> None:
    objects = Objects.at("s3://bucket/a/b/?endpoint=http://127.0.0.1:9000&region=mars", KEYS)
    assert (objects.root, objects.bucket, objects.prefix) == ("s3://bucket/a/b", "bucket", "a/b")
    assert objects.path(objects.table("t")) == "bucket/a/b/t"
    assert (objects.endpoint, objects.options["AWS_REGION"]) == ("http://127.0.0.1:9000", "mars")
    assert objects.options["AWS_ALLOW_HTTP"] == "true"


def test_what_the_url_leaves_out_is_taken_from_the_environment() -> None:
    environ = {**KEYS, "AWS_REGION": "venus", "AWS_ENDPOINT_URL": "https://store.example"}
    options = Objects.at("s3://bucket", environ).options
    assert (options["AWS_REGION"], options["AWS_ENDPOINT_URL"]) == ("venus", "https://store.example")
    assert "AWS_ALLOW_HTTP" not in options


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(Objects.at("s3://bucket", KEYS))


@pytest.mark.parametrize(
    "url", ["lake", "./lake", "gs://bucket", "s3://", "s3:///lake", "s3://bucket?secret=x", "file://host/lake", ""]
)
def test_another_place_is_refused_with_a_hint(url: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        Objects.at(url, KEYS)
    assert "s3://bucket/prefix" in refusal.value.hint


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIA:very-secret@bucket/lake",
        "s3://bucket?endpoint=http://AKIA:very-secret@127.0.0.1",
        "gs://very-secret@b",
    ],
)
def test_keys_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        Objects.at(url, KEYS)
    assert "very-secret" not in f"{refusal.value}{refusal.value.hint}"


def test_a_filesystem_writes_and_reads_what_is_under_it(tmp_path: Path) -> None:
    objects = Objects.at(str(tmp_path))
    with objects.filesystem().open_output_stream(objects.path(objects.table("t"))) as stream:
        stream.write(b"one")
    assert (tmp_path / "t").read_bytes() == b"one"


@pytest.mark.parametrize(
    ("url", "beside"),
    [
        ("/srv/la ke", "/srv/la ke-simulated"),
        ("s3://bucket/a/b?endpoint=http://store:9000&region=mars", "s3://bucket/a/b-simulated"),
        ("s3://bucket", "s3://bucket/simulated"),
    ],
)
def test_a_place_has_one_beside_it_in_the_same_store(url: str, beside: str) -> None:
    objects = Objects.at(url, KEYS)
    assert (objects.beside("simulated").root, objects.beside("simulated").options) == (beside, objects.options)


@pytest.mark.parametrize("url", ["/srv/la ke", "s3://bucket/a?endpoint=http://store:9000&region=mars", "s3://bucket"])
def test_the_url_of_a_place_leads_back_to_it_and_carries_no_key(url: str) -> None:
    objects = Objects.at(url, KEYS)
    assert Objects.at(objects.url, KEYS) == objects
    assert "AKIA" not in objects.url
