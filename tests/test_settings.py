"""Settings: four sources in one order, every value with its origin, and no secret ever shown."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from angelia.errors import SettingsError
from angelia.settings import SCHEDULE, Context, Loaded, Settings, load, mask_url, period, variable

# Of each kind of value: its name, and what TOML, the environment and a flag may say, with what each then means.
KINDS: list[tuple[str, tuple[str, Any], tuple[str, Any], tuple[Any, Any]]] = [
    ("host", ('"10.0.0.1"', "10.0.0.1"), (" 10.0.0.2 ", "10.0.0.2"), ("10.0.0.3", "10.0.0.3")),
    ("port", ("81", 81), ("82", 82), (83, 83)),
    ("port", ('"81"', 81), ("0", 0), ("83", 83)),
    ("insecure", ("true", True), ("false", False), (True, True)),
    ("data_dir", ('"/a"', Path("/a")), ("/b", Path("/b")), (Path("/c"), Path("/c"))),
    ("postgres_bin", ('"~/a"', Path.home() / "a"), ("~/b", Path.home() / "b"), ("/c", Path("/c"))),
    ("public_url", ('"https://a.b"', "https://a.b"), ("http://b:1/", "http://b:1/"), ("https://c", "https://c")),
    ("trusted_proxies", ('["a", "b"]', ("a", "b")), ("c, d,", ("c", "d")), (("e",), ("e",))),
    ("trusted_proxies", ('"a,b"', ("a", "b")), (" c ", ("c",)), ("d,e", ("d", "e"))),
    ("limits", ('{who = "off"}', {"who": "off"}), ("a=1/1m, b=off", {"a": "1/1m", "b": "off"}), ({}, {})),
    ("database_url", ('"postgres://a"', "postgres://a"), ("postgres://b", "postgres://b"), ("c", "c")),
    ("identity", ('"ann"', "ann"), ("bob", "bob"), ("cyd", "cyd")),
]


def loaded(tmp_path: Path, toml: str = "", environ: Mapping[str, str] | None = None, **flags: Any) -> Loaded:
    file = tmp_path / "angelia.toml"
    file.write_text(toml)
    return load(flags, environ or {}, file)


def refusal(tmp_path: Path, toml: str = "", environ: Mapping[str, str] | None = None, **flags: Any) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, toml, environ, **flags)
    return caught.value


def shown(found: Loaded) -> dict[str, str]:
    return {line.name: line.value for line in found.shown()}


# The pipeline.


def test_a_schedule_that_is_given_adds_to_the_default_one(tmp_path: Path) -> None:
    given = {"ANGELIA_PIPELINE_SCHEDULE": "analytics=2d, archive audit=off"}
    assert loaded(tmp_path, environ=given).settings.pipeline_schedule == {
        "archive receipts": "1d",
        "archive sessions": "1d",
        "archive rooms": "1d",
        "archive queues": "1d",
        "archive audit": "off",
        "analytics": "2d",
    }


def test_one_word_turns_the_schedule_off(tmp_path: Path) -> None:
    found = loaded(tmp_path, environ={"ANGELIA_PIPELINE_SCHEDULE": "off"}).settings.pipeline_schedule
    assert set(found) == set(SCHEDULE)
    assert {period(text) for text in found.values()} == {None}


@pytest.mark.parametrize(
    ("text", "length"),
    [("15m", timedelta(minutes=15)), ("1h", timedelta(hours=1)), ("2d", timedelta(days=2)), ("1w", timedelta(weeks=1))],
)
def test_a_period_is_a_number_and_a_unit(text: str, length: timedelta) -> None:
    assert period(text) == length


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("lake", "lake", "is an absolute path, or s3://bucket/prefix"),
        ("lake", "s3:///prefix", "is an absolute path, or s3://bucket/prefix"),
        ("spark_master", "cluster:7077", "is local[*], spark://host:7077, yarn or k8s://host:port"),
        ("spark_remote", "host:15002", "is written as sc://host:15002"),
        ("pipeline_schedule", "erase=1d", "'erase' is not started by a schedule"),
        ("pipeline_schedule", "analytics=0d", "write analytics=0d as analytics=15m, 1h, 1d, 2w or off"),
        ("pipeline_schedule", "analytics=daily", "write analytics=daily as analytics=15m, 1h, 1d, 2w or off"),
    ],
)
def test_what_the_pipeline_could_not_use_is_refused(tmp_path: Path, name: str, value: str, why: str) -> None:
    assert why in refusal(tmp_path, environ={variable(name): value}).message


def test_spark_runs_at_one_place(tmp_path: Path) -> None:
    both = {"spark_master": "spark://a:7077", "spark_remote": "sc://a:15002"}
    assert "cannot both say where Spark runs" in refusal(tmp_path, **both).message


# Precedence and origins.


@pytest.mark.parametrize(("name", "toml", "env", "flag"), KINDS)
def test_the_last_source_that_speaks_wins(
    tmp_path: Path, name: str, toml: tuple[str, Any], env: tuple[str, Any], flag: tuple[Any, Any]
) -> None:
    file, variables = f"{name} = {toml[0]}", {variable(name): env[0]}
    by_default = loaded(tmp_path)
    by_toml = loaded(tmp_path, file)
    by_env = loaded(tmp_path, file, variables)
    by_flag = loaded(tmp_path, file, variables, **{name: flag[0]})
    values = [getattr(each.settings, name) for each in (by_default, by_toml, by_env, by_flag)]
    assert values == [getattr(Settings(), name), toml[1], env[1], flag[1]]
    origins = [each.origins[name] for each in (by_default, by_toml, by_env, by_flag)]
    spelt = f"--{name.replace('_', '-')}"
    assert origins == ["default", str(tmp_path / "angelia.toml"), variable(name), spelt]


@given(toml=st.none() | st.integers(1, 99), env=st.none() | st.integers(1, 99), flag=st.none() | st.integers(1, 99))
@settings(deadline=None, max_examples=50)
def test_of_any_sources_the_strongest_that_speaks_decides(
    tmp_path_factory: pytest.TempPathFactory, toml: int | None, env: int | None, flag: int | None
) -> None:
    path = tmp_path_factory.getbasetemp()
    file = "" if toml is None else f"workers = {toml}"
    variables = {} if env is None else {"ANGELIA_WORKERS": str(env)}
    found = loaded(path, file, variables, workers=flag)
    assert found.settings.workers == next(value for value in (flag, env, toml, 1) if value is not None)


def test_each_setting_can_be_told_by_its_variable_and_by_toml() -> None:
    """One spelling each, so that what is documented for one is true for all."""
    names = set(shown(Loaded(Settings(), dict.fromkeys(Settings.__slots__, "default"))))
    variables = {variable(name) for name in names}
    assert len(variables) == len(names)
    special = {v for v in variables if not v.startswith("ANGELIA_")}
    assert special == {"DATABASE_URL", "REDIS_URL"}


def test_an_empty_variable_and_a_flag_of_none_say_nothing(tmp_path: Path) -> None:
    found = loaded(tmp_path, "port = 81", {"ANGELIA_PORT": ""}, port=None)
    assert (found.settings.port, found.origins["port"]) == (81, str(tmp_path / "angelia.toml"))


def test_names_of_other_programs_are_not_read(tmp_path: Path) -> None:
    foreign = {"PORT": "1", "RATE_LIMIT_WHITELIST": "10.0.0.1", "AUTO_BLOCK_ENABLED": "true", "PGHOST": "x"}
    assert loaded(tmp_path, environ=foreign).settings == Settings()


def test_the_default_port_is_8080_on_loopback() -> None:
    assert (Settings().port, Settings().loopback, Settings().auto_block_enabled) == (8080, True, False)


# Where angelia.toml is looked for.


def test_angelia_config_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.toml"
    file.write_text("port = 81")
    found = load({}, {"ANGELIA_CONFIG": str(file)})
    assert (found.settings.port, found.origins["port"]) == (81, str(file))


def test_a_named_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="not a file"):
        load({}, {"ANGELIA_CONFIG": str(tmp_path / "none.toml")})


def test_a_file_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "angelia.toml").write_text("port = 81")
    monkeypatch.chdir(tmp_path)
    assert load({}, {}).settings.port == 81


@pytest.mark.parametrize("text", ["port = ", "[port", "port = 1\nport = 2", "\x00"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, text: str) -> None:
    assert str(tmp_path / "angelia.toml") in refusal(tmp_path, text).message


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    file = tmp_path / "angelia.toml"
    file.write_bytes(b'host = "\xff"')
    with pytest.raises(SettingsError, match="cannot be read"):
        load({}, {}, file)


# What is refused, and with which words.


@pytest.mark.parametrize(
    ("key", "nearest"), [("prot", "port"), ("databaseurl", "database_url"), ("log_levle", "log_level")]
)
def test_an_unknown_key_is_refused_with_the_nearest_one(tmp_path: Path, key: str, nearest: str) -> None:
    error = refusal(tmp_path, f'{key} = "x"')
    assert key in error.message
    assert error.hint == f"did you mean {nearest}?"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("ANGELIA_PROT", "ANGELIA_PORT"),
        ("ANGELIA_LOGLEVEL", "ANGELIA_LOG_LEVEL"),
        ("ANGELIA_DATABASE_URL", "DATABASE_URL"),
        ("ANGELIA_REDIS_URL", "REDIS_URL"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_one(tmp_path: Path, name: str, nearest: str) -> None:
    error = refusal(tmp_path, environ={name: "x"})
    assert name in error.message
    assert error.hint == f"did you mean {nearest}?"


def test_what_resembles_nothing_is_sent_to_the_list(tmp_path: Path) -> None:
    assert "angelia config show" in refusal(tmp_path, "qqqqqqqq = 1").hint


def test_contexts_cannot_be_told_by_a_variable(tmp_path: Path) -> None:
    assert "ANGELIA_CONTEXT" in refusal(tmp_path, environ={"ANGELIA_CONTEXT": "prod"}).message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "eighty"),
        ("port", "80.5"),
        ("port", "-1"),
        ("port", "65536"),
        ("port", "99999999999999999999"),
        ("workers", "0"),
        ("database_pool", "0"),
        ("redis_pool", "-1"),
        ("drain_seconds", "-1"),
        ("insecure", "yes please"),
        ("auto_block_enabled", "on"),
        ("log_level", "loud"),
        ("log_format", "xml"),
        ("signature_past_seconds", "0"),
        ("signature_past_seconds", "151"),
        ("signature_ahead_seconds", "-1"),
        ("signature_ahead_seconds", "21"),
        ("public_url", "angelia.example"),
        ("public_url", "ftp://angelia.example"),
        ("public_url", "https://angelia.example/path"),
        ("public_url", "https://angelia.example/\nx"),
        ("audit_witness", "checkpoints"),
        ("audit_witness", "https://angelia.example"),
        ("audit_witness", "ftp://:token@angelia.example"),
        ("queue_encryption_key", "a1" * 31),
        ("queue_encryption_key", "a1" * 33),
        ("queue_encryption_key", "x1" * 32),
        ("queue_encryption_key", "a1" * 31 + "\u0661\u0662"),
        ("retention_interval", "99"),
        ("eviction_interval", "0"),
        ("retention_batch", "0"),
        ("retention_batch", "100001"),
        ("retention_hours", "1"),
        ("retention_hours", "1-25"),
        ("retention_hours", "5-5"),
        ("retention_hours", "-1-5"),
        ("retention_hours", "١-٥"),
        ("limits", "register"),
        ("limits", "register=,who=off"),
    ],
)
def test_a_bad_value_names_the_setting_and_where_it_came_from(tmp_path: Path, name: str, value: str) -> None:
    error = refusal(tmp_path, environ={variable(name): value})
    assert error.message.startswith(f"{name} from {variable(name)}: ")


def test_a_refused_key_is_not_repeated_in_the_refusal(tmp_path: Path) -> None:
    error = refusal(tmp_path, environ={"ANGELIA_QUEUE_ENCRYPTION_KEY": "5ec2e7" * 10})
    assert "5ec2e7" not in error.message + error.hint
    assert "64 hex characters" in error.message


def test_the_key_of_queues_is_read_from_hex_of_either_case(tmp_path: Path) -> None:
    assert loaded(tmp_path).settings.queue_key is None
    for text in ("0aff" * 16, "0AfF" * 16):
        found = loaded(tmp_path, environ={"ANGELIA_QUEUE_ENCRYPTION_KEY": f" {text}\n"})
        assert found.settings.queue_key == b"\x0a\xff" * 16
        assert shown(found)["queue_encryption_key"] == "***"


@pytest.mark.parametrize(("text", "hours"), [("1-5", (1, 5)), ("22-4", (22, 4)), ("00-24", (0, 24)), ("", None)])
def test_the_hours_of_retention_are_two_hours_of_the_day(
    tmp_path: Path, text: str, hours: tuple[int, int] | None
) -> None:
    found = loaded(tmp_path, environ={"ANGELIA_RETENTION_HOURS": text})
    assert found.settings.retention_window == hours


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "true"),
        ("port", "[81]"),
        ("host", "81"),
        ("insecure", "1"),
        ("data_dir", "5"),
        ("postgres_bin", "[]"),
        ("trusted_proxies", "[1]"),
        ("trusted_proxies", "{}"),
        ("limits", "{who = 5}"),
        ("limits", "[]"),
        ("context", '{prod = "https://a"}'),
        ("context", '{prod = {token_file = "t"}}'),
        ("context", '{prod = {url = "https://a", colour = "red"}}'),
    ],
)
def test_a_toml_value_of_the_wrong_type_is_refused(tmp_path: Path, name: str, value: str) -> None:
    error = refusal(tmp_path, f"{name} = {value}")
    assert error.message.startswith(f"{name} from {tmp_path / 'angelia.toml'}: ")


@given(text=st.text(max_size=30) | st.sampled_from(["~nobody-of-that-name/x", "~", "\0"]))
@settings(deadline=None, max_examples=50)
def test_any_text_in_a_variable_is_a_value_or_a_settings_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp()
    for name in Settings.__slots__:
        if name != "context":
            with contextlib.suppress(SettingsError):
                shown(loaded(path, "", {variable(name): text}))


# Loopback is the bind address.


@pytest.mark.parametrize("host", ["localhost", "LocalHost", "127.0.0.1", "127.8.9.10", "::1", "[::1]"])
def test_loopback_addresses(host: str) -> None:
    assert Settings(host=host).loopback


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "[::]", "", "192.168.0.1", "127.0.0.1.nip.io", "127.evil.example", "localhost.x"],  # noqa: S104
)
def test_every_other_address_is_not_loopback(host: str) -> None:
    assert not Settings(host=host).loopback


# Contexts.


def test_contexts_are_named_servers(tmp_path: Path) -> None:
    text = '[context.prod]\nurl = "https://a.example"\ntoken_file = "~/t"\nas = "ann"\n[context.dev]\nurl = "http://b"'
    found = loaded(tmp_path, text)
    assert found.settings.context == {
        "prod": Context(url="https://a.example", token_file="~/t", identity="ann"),
        "dev": Context(url="http://b"),
    }
    assert shown(found)["context"] == "dev=http://b,prod=https://a.example"


# What is shown.

PASSWORDS = st.text(min_size=12, max_size=20).filter(lambda text: not text.isspace())
URLS = {
    "postgresql://ann:SECRET@db.example:5432/angelia": "postgresql://ann:***@db.example:5432/angelia",
    "redis://:SECRET@cache.example/0": "redis://:***@cache.example/0",
    "postgresql://db.example/angelia?user=ann&password=SECRET": "postgresql://db.example/angelia?user=ann&password=***",
    "postgresql:///a?password=SECRET&host=/run": "postgresql:///a?password=***&host=/run",
    "postgresql://a:SECRET@h/d?sslpassword=SECRET": "postgresql://a:***@h/d?sslpassword=***",
    "unix:///run/valkey.sock?password=SECRET&db=1": "unix:///run/valkey.sock?password=***&db=1",
    "postgresql://ann:SECRET@SECRET@db.example/angelia": "postgresql://ann:***@db.example/angelia",
    "postgresql://ann:SECRET/SECRET@db.example/angelia": "postgresql://***",
    "postgresql://ann:SECRET#SECRET@db.example/angelia": "postgresql://***",
    "postgresql://[broken:SECRET@h/d": "postgresql://[broken:***@h/d",
    "sc://h:15002/;use_ssl=true;token=SECRET": "sc://h:15002/",
    "sc://h:15002;token=SECRET": "sc://h:15002",
    "host=h password=SECRET": "***",
}


@pytest.mark.parametrize(("url", "masked"), URLS.items())
def test_the_passwords_of_a_url_are_hidden(url: str, masked: str) -> None:
    assert mask_url(url) == masked


@pytest.mark.parametrize(
    "url", ["postgresql://db.example:5432/angelia", "redis://ann@h/0", "postgresql:///a?host=/run", "redis://h1:1,h2:2"]
)
def test_a_url_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert mask_url(url) == url


@given(password=PASSWORDS, user=st.sampled_from(["", "ann"]))
def test_no_password_survives_masking(password: str, user: str) -> None:
    escaped = quote(password, safe="")
    url = f"postgresql://{user}:{escaped}@db.example/angelia?application_name=x&password={escaped}"
    assert mask_url(url) == f"postgresql://{user}:***@db.example/angelia?application_name=x&password=***"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("database_url", "postgresql://ann:hunter2@h/d"),
        ("database_url", "host=h password=hunter2"),
        ("redis_url", "redis://:hunter2@h"),
        ("jwt_secret", "hunter2"),
        ("token", "hunter2"),
        ("url", "https://ann:hunter2@h"),
        ("public_url", "https://ann:hunter2@h"),
        ("audit_witness", "https://:hunter2@h"),
        ("jwt_jwks_url", "https://ann:hunter2@h/keys"),
    ],
)
def test_no_secret_is_shown(tmp_path: Path, name: str, value: str) -> None:
    lines = loaded(tmp_path, environ={variable(name): value}).shown()
    assert "hunter2" not in json.dumps([(line.name, line.value, line.origin, line.about) for line in lines])


def test_a_context_is_shown_without_its_password(tmp_path: Path) -> None:
    found = loaded(tmp_path, '[context.prod]\nurl = "https://ann:hunter2@h"')
    assert shown(found)["context"] == "prod=https://ann:***@h"


def test_every_setting_is_shown_once_with_what_it_is_about(tmp_path: Path) -> None:
    lines = loaded(tmp_path, environ={"ANGELIA_INSECURE": "true"}, trusted_proxies=("10.0.0.0/8", "::1")).shown()
    assert [line.name for line in lines] == list(Settings.__slots__)
    assert all(line.about and line.origin and line.value for line in lines)
    values = {line.name: line.value for line in lines}
    assert values["insecure"] == "true"
    assert values["trusted_proxies"] == "10.0.0.0/8,::1"
    assert values["jwt_secret"] == "-"


def test_the_documentation_lists_every_setting_with_its_variable() -> None:
    page = (Path(__file__).parents[1] / "docs/settings.md").read_text("utf-8")
    for field in dataclasses.fields(Settings):
        name = "–" if field.name == "context" else f"`{variable(field.name)}`"
        assert f"| `{field.name}` | {name} |" in page
        assert field.metadata["about"] in page
