"""Every setting of Angelia in one typed object: defaults < angelia.toml < environment < flags."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, get_type_hints
from uuid import UUID

import msgspec
import platformdirs

from angelia.errors import SettingsError

_URL = re.compile(r"([^:/?#]+://)([^/?#]*)(.*)", re.DOTALL)
_PAIRS = {"limits": "register=10/1h,who=off", "pipeline_schedule": "archive receipts=1d,analytics=off"}
# The jobs that a running server may start, and how often it does so by itself.
# Analytics once a day: the ledger keeps messages of rooms for a day, and then nothing can count them any more.
SCHEDULE = {
    "archive receipts": "1d",
    "archive sessions": "1d",
    "archive rooms": "1d",
    "archive queues": "1d",
    "archive audit": "1h",
    "analytics": "1d",
}
SCHEDULABLE = (*SCHEDULE, "analytics", "replay audit", "verify audit", "maintain")
SPARK_MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")
SPARK_REMOTE = re.compile(r"sc://(\[[0-9a-fA-F:.]+\]|[^/:;\[\]]+)(:\d+)?(/.*)?")
_PERIOD = re.compile(r"(\d{1,4})([mhdw])", re.ASCII)
_PERIOD_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
OUR_OWN = "our own"  # the origin of an embedded store's URL
# What a value must be beyond its type, and the words for one that is not.
_RULES: tuple[tuple[str, Callable[[Any], object], str], ...] = (
    ("workers", lambda number: number >= 1, "must be at least 1"),
    ("database_pool", lambda number: number >= 4, "must be at least 4"),
    ("redis_pool", lambda number: number >= 2, "must be at least 2"),
    ("max_ttl_seconds", lambda number: 1 <= number <= 2_592_000, "must be between 1 and 2592000, which is 30 days"),
    ("drain_seconds", lambda number: number >= 0, "must not be negative"),
    ("log_level", ("debug", "info", "warning", "error").__contains__, "is one of debug, info, warning, error"),
    ("log_format", ("auto", "json", "text").__contains__, "is one of auto, json, text"),
    ("signature_past_seconds", range(1, 151).__contains__, "must be between 1 and 150, so that nonces outlive it"),
    ("signature_ahead_seconds", range(21).__contains__, "must be between 0 and 20"),
    (
        "public_url",
        re.compile(r"https?://[^/]+/?\Z").match,
        "is a URL without a path, such as https://angelia.example",
    ),
    (
        "audit_witness",
        re.compile(r"/|https?://:[^@/]+@[^/]+/?\Z").match,
        "is an absolute path, or another node as https://:TOKEN@host",
    ),
    (
        "queue_encryption_key",
        re.compile(r"[0-9a-fA-F]{64}").fullmatch,
        "must have exactly 64 hex characters, such as `openssl rand -hex 32` prints",
    ),
    ("queue_subscription_mode", ("all", "new").__contains__, "is one of all, new"),
    ("retention_interval", lambda number: number >= 100, "must be at least 100, in milliseconds"),
    ("retention_batch", range(1, 100_001).__contains__, "must be between 1 and 100000"),
    (
        "retention_hours",
        re.compile(r"(?!([0-9]+)-\1\Z)([01]?[0-9]|2[0-4])-([01]?[0-9]|2[0-4])").fullmatch,
        "is two hours of the day in UTC, such as 1-5 or 22-4",
    ),
    ("log_append_rate", lambda number: number >= 1, "must be at least 1"),
    ("log_append_burst", lambda number: number >= 256, "must be at least 256, so that one request fits"),
    ("eviction_interval", lambda number: number >= 100, "must be at least 100, in milliseconds"),
    (
        "lake",
        re.compile(r"/|file:///|s3://[^/?]").match,
        "is an absolute path, or s3://bucket/prefix?endpoint=https://host&region=name",
    ),
    ("spark_master", SPARK_MASTER.fullmatch, "is local[*], spark://host:7077, yarn or k8s://host:port"),
    ("spark_remote", SPARK_REMOTE.fullmatch, "is written as sc://host:15002"),
)


def setting(default: Any, about: str, *, secret: bool = False, env: str = "") -> Any:
    """Declares one setting. `env` is its environment variable, ANGELIA_<NAME> if empty."""
    metadata = {"about": about, "secret": secret, "env": env}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def default_data_dir() -> Path:
    """A directory of the user; for root one below /var/lib, since the user that PostgreSQL runs as cannot enter root's
    home."""
    return Path("/var/lib/angelia") if os.geteuid() == 0 else Path(platformdirs.user_data_dir("angelia"))


def default_home() -> Path:
    return Path(platformdirs.user_data_dir("angelia")) / "agents"


class Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named server of angelia.toml. It is used only by commands that name it."""

    url: str
    token_file: str | None = None
    identity: str | None = msgspec.field(default=None, name="as")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The effective values. `Loaded.shown` masks the secrets among them."""

    data_dir: Path = setting(default_data_dir, "where the server keeps its stores, keys and admin token")
    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8080, "port to listen on; 0 takes a free one")
    workers: int = setting(1, "web processes")
    public_url: str | None = setting(
        None, "the URL clients use: needed beyond loopback, and when a proxy stands in front"
    )
    trusted_proxies: tuple[str, ...] = setting((), "addresses or networks whose X-Forwarded-For is believed")
    insecure: bool = setting(False, "listen beyond loopback without tokens or JWT")
    database_url: str | None = setting(None, "PostgreSQL to use instead of our own", secret=True, env="DATABASE_URL")
    redis_url: str | None = setting(None, "Valkey or Redis to use instead of our own", secret=True, env="REDIS_URL")
    postgres_bin: Path | None = setting(None, "directory of PostgreSQL binaries to use instead of the wheel's")
    master_key_file: Path | None = setting(None, "the master key's file, if not master.key in the data directory")
    queue_encryption_key: str | None = setting(
        None, "the key of encrypted queues, 64 hex characters, instead of a data key under the master key", secret=True
    )
    queue_subscription_mode: str = setting(
        "all", "where consumer groups of queues begin that do not say it: all messages, or new ones"
    )
    database_pool: int = setting(10, "ledger connections per process")
    redis_pool: int = setting(10, "hot-tier connections per process")
    log_level: str = setting("info", "debug, info, warning or error")
    log_format: str = setting("auto", "json, text, or auto: text on a terminal")
    drain_seconds: int = setting(30, "how long a stopping server lets requests finish")
    max_ttl_seconds: int = setting(604_800, "how long a message may wait for its recipient, at most")
    retention_interval: int = setting(300_000, "milliseconds between two runs of the retention of queues")
    retention_batch: int = setting(1000, "how many partitions or rows of queues a round of retention takes at most")
    retention_hours: str | None = setting(
        None, "the hours (UTC) in which retention of queues runs, such as 1-5 or 22-4; unset: always"
    )
    eviction_interval: int = setting(60_000, "milliseconds between two runs of the eviction of messages from queues")
    rate_limit_whitelist: tuple[str, ...] = setting((), "addresses or networks without limits and blocks")
    auto_block_enabled: bool = setting(False, "block an address for a day after ten refusals in an hour")
    limits: Mapping[str, str] = setting(dict, 'rate limits by rule, as "register=10/1h,who=off"')
    signature_past_seconds: int = setting(30, "how old a signed request may be")
    signature_ahead_seconds: int = setting(5, "how far ahead of our clock a signed request may be")
    aicq_signatures: bool = setting(True, "accept the X-AICQ-* headers of old clients on the root surface")
    admin_agent_id: UUID | None = setting(None, "the agent that may delete messages of others in rooms")
    show_email: bool = setting(False, "publish agents' e-mail addresses in /who")
    open_metrics: bool = setting(True, "serve /metrics without a credential; if not, the role read-only is needed")
    jwt_secret: str | None = setting(None, "HS256 secret of JSON Web Tokens", secret=True)
    jwt_public_key: Path | None = setting(None, "PEM file that verifies RS256 or EdDSA tokens")
    jwt_jwks_url: str | None = setting(None, "where the keys of JSON Web Tokens are published")
    jwt_issuer: str | None = setting(None, "the iss claim that tokens must carry")
    jwt_audience: str = setting("angelia", "the aud claim that tokens must carry")
    jwt_audience_optional: bool = setting(False, "accept tokens without an aud claim, as Queen does")
    audit_witness: str | None = setting(
        None, "who else keeps the audit's checkpoints: a file on another disk, or another node as https://:TOKEN@host"
    )
    log_append_rate: int = setting(200, "messages a second that a member may append to a group log")
    log_append_burst: int = setting(1000, "messages that a member of a group log may append at once")
    lake: str | None = setting(
        None, "where the archive lies, if not in the data directory: a path, or s3://bucket/prefix"
    )
    spark_master: str | None = setting(None, "the Spark cluster that the pipeline runs on, instead of this machine")
    spark_remote: str | None = setting(None, "the Spark Connect server that the pipeline runs on, as sc://host:port")
    java_home: Path | None = setting(None, "the Java that Spark runs on, if not JAVA_HOME or the one that came along")
    pipeline_schedule: Mapping[str, str] = setting(
        SCHEDULE.copy,
        'how often a running server starts jobs of the pipeline, as "analytics=1d,archive audit=off"; off for none',
    )
    home: Path = setting(default_home, "where this user's agents keep their keys")
    url: str | None = setting(None, "the server that the command line talks to")
    identity: str | None = setting(None, "which agent of the home signs", env="ANGELIA_AS")
    token: str | None = setting(None, "operator token of the command line", secret=True)
    room_key: str | None = setting(None, "key of a private room, for the command line", secret=True)
    context: Mapping[str, Context] = setting(dict, "named servers, in angelia.toml only")

    @property
    def loopback(self) -> bool:
        """Whether the server listens on this machine only. Of names, only localhost counts: others may resolve to any
        address."""
        try:
            return self.host.lower() == "localhost" or ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def reachable(self) -> bool:
        """Whether clients on other machines can reach the server, by the bind address or through a proxy."""
        return not self.loopback or self.public_url is not None or bool(self.trusted_proxies)

    @property
    def lake_root(self) -> str:
        """The path or URL of the archive: the setting, or else a directory in the data directory."""
        return self.lake or str(self.data_dir.expanduser().resolve() / "lake")

    @property
    def queue_key(self) -> bytes | None:
        return None if self.queue_encryption_key is None else bytes.fromhex(self.queue_encryption_key)

    @property
    def retention_window(self) -> tuple[int, int] | None:
        """The hours of `retention_hours`: from the first until the second; None for always."""
        if self.retention_hours is None:
            return None
        first, _, second = self.retention_hours.partition("-")
        return int(first), int(second)

    @property
    def jwt_enabled(self) -> bool:
        return bool(self.jwt_secret or self.jwt_public_key or self.jwt_jwks_url)


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """One line of `angelia config show`."""

    name: str
    value: str
    origin: str
    about: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and the origin of each: `default`, a file, a variable or a flag."""

    settings: Settings
    origins: Mapping[str, str]

    def shown(self) -> list[EffectiveSetting]:
        """Returns all settings, with secrets masked."""
        lines = []
        for declared in dataclasses.fields(Settings):
            name, value = declared.name, _shown_value(declared, getattr(self.settings, declared.name))
            lines.append(EffectiveSetting(name, value, self.origins[name], declared.metadata["about"]))
        return lines


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return Settings.__dataclass_fields__[name].metadata["env"] or f"ANGELIA_{name.upper()}"


def load(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    config_file: Path | None = None,
) -> Loaded:
    """Reads the four sources; later ones override earlier ones. A flag of None was not given."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    origins = {f.name: "default" for f in dataclasses.fields(Settings)}

    path = config_file or _configured_file(environ)
    if path is not None:
        for name, value in _read_toml(path).items():
            values[name], origins[name] = value, str(path)
    for name in origins:
        if name != "context" and (text := environ.get(variable(name), "")):
            values[name], origins[name] = text, variable(name)
    _refuse_unknown_variables(environ, origins)
    for name, value in (flags or {}).items():
        if value is not None:
            values[name], origins[name] = value, f"--{name.replace('_', '-')}"

    hints = get_type_hints(Settings)
    parsed = {name: _parse(name, value, hints[name], origins[name]) for name, value in values.items()}
    if "pipeline_schedule" in parsed:  # jobs that it does not name keep their default
        parsed["pipeline_schedule"] = {**SCHEDULE, **parsed["pipeline_schedule"]}
    settings = Settings(**parsed)
    _check(settings, origins)
    return Loaded(settings, origins)


def period(text: str) -> timedelta | None:
    """Returns the period of a job, written as `15m`, `1h`, `1d` or `2w`; None for `off`; ValueError for other texts."""
    found = _PERIOD.fullmatch(text)
    if text != "off" and (found is None or int(found[1]) == 0):
        raise ValueError(f"{text!r} is no period")
    return None if found is None else timedelta(**{_PERIOD_UNITS[found[2]]: int(found[1])})


def mask_url(url: str) -> str:
    """Returns a URL without the passwords in its authority and query, and without a Connect server's parameters, which
    may hold a token. A text that is no URL is replaced by ***."""
    if url.startswith("sc://"):
        url = url.partition(";")[0]
    found = _URL.fullmatch(url)
    if found is None:
        return "***"
    scheme, authority, rest = found.groups()
    user, _, host = authority.rpartition("@")
    if ":" in user:
        authority = f"{user.partition(':')[0]}:***@{host}"
    elif not user and ":" in authority and "@" in rest:  # a password with an unescaped slash splits a URL wrongly
        return f"{scheme}***"
    return scheme + authority + re.sub(r"(password=)[^&]*", r"\1***", rest)


def _configured_file(environ: Mapping[str, str]) -> Path | None:
    named = environ.get("ANGELIA_CONFIG")
    if named:
        if not Path(named).is_file():
            raise SettingsError(f"ANGELIA_CONFIG names {named}, which is not a file")
        return Path(named)
    for candidate in (Path("angelia.toml"), Path(platformdirs.user_config_dir("angelia")) / "angelia.toml"):
        if candidate.is_file():
            return candidate
    return None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    known = {f.name for f in dataclasses.fields(Settings)}
    for name in table:
        if name not in known:
            raise SettingsError(f"{path} sets {name}, which is no setting", hint=_nearest(name, known))
    return table


def _refuse_unknown_variables(environ: Mapping[str, str], names: Mapping[str, str]) -> None:
    known = {variable(name) for name in names if name != "context"} | {"ANGELIA_CONFIG", "ANGELIA_VECTORS"}
    for name in environ:
        if name.startswith("ANGELIA_") and name not in known:
            plain = name.removeprefix("ANGELIA_")
            hint = f"did you mean {plain}?" if plain in known else _nearest(name, known)
            raise SettingsError(f"{name} is set, but is no setting", hint=hint)


def _nearest(name: str, known: set[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else "`angelia config show` lists all settings"


def _parse(name: str, value: Any, kind: Any, origin: str) -> Any:
    if isinstance(value, str):
        value = value.strip()
        if name in _PAIRS:
            value = _parse_pairs(name, value, origin)
        elif kind == tuple[str, ...]:
            value = tuple(part.strip() for part in value.split(",") if part.strip())
    if kind in (Path, Path | None) and isinstance(value, str | Path):
        try:
            return Path(value).expanduser()
        except RuntimeError as error:
            raise SettingsError(
                f"{name} from {origin}: there is no home directory for {Path(value).parts[0]}"
            ) from error
    try:
        return msgspec.convert(value, kind, strict=not isinstance(value, str))
    except msgspec.ValidationError as error:
        raise SettingsError(
            f"{name} from {origin}: {error}", hint="`angelia config show` lists all settings"
        ) from error


def _parse_pairs(name: str, text: str, origin: str) -> dict[str, str]:
    if name == "pipeline_schedule" and text == "off":
        return dict.fromkeys(SCHEDULE, "off")
    pairs = dict(part.partition("=")[::2] for part in text.split(",") if part.strip())
    if not all(pairs.values()):
        raise SettingsError(f"{name} from {origin}: write it as {_PAIRS[name]}")
    return {key.strip(): value.strip() for key, value in pairs.items()}


def _check(settings: Settings, origins: Mapping[str, str]) -> None:
    def refuse(name: str, why: str, hint: str = "`angelia config show` lists all settings") -> None:
        raise SettingsError(f"{name} from {origins[name]}: {why}", hint=hint)

    if not 0 <= settings.port <= 65535:
        refuse("port", f"{settings.port} is not between 0 and 65535", "`angelia serve --port 0` takes a free one")
    for name, is_right, why in _RULES:
        value = getattr(settings, name)
        if value is not None and not is_right(value):
            refuse(name, why)
    if settings.jwt_public_key is not None and settings.jwt_jwks_url is not None:
        refuse("jwt_public_key", "and jwt_jwks_url cannot both say which keys are right")
    if settings.spark_master is not None and settings.spark_remote is not None:
        refuse("spark_remote", "and spark_master cannot both say where Spark runs")
    for job, text in settings.pipeline_schedule.items():
        if job not in SCHEDULABLE:
            refuse("pipeline_schedule", f"{job!r} is not started by a schedule; {', '.join(SCHEDULABLE)} are")
        try:
            period(text)
        except ValueError:
            refuse("pipeline_schedule", f"write {job}={text} as {job}=15m, 1h, 1d, 2w or off")


def _shown_value(declared: dataclasses.Field[Any], value: Any) -> str:
    if value is None:
        return "-"
    if declared.metadata["secret"] or (isinstance(value, str) and "://" in value):
        return mask_url(value) if "://" in value else "***"
    if isinstance(value, Mapping):
        shown = {name: mask_url(one.url) if isinstance(one, Context) else one for name, one in value.items()}
        return ",".join(f"{name}={one}" for name, one in sorted(shown.items())) or "-"
    if isinstance(value, tuple):
        return ",".join(value) or "-"
    return str(value).lower() if isinstance(value, bool) else str(value)
