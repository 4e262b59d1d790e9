"""`angelia serve` turns flags into settings and leaves the rest to the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from angelia.settings import Loaded
from cli.running import Angelia


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Loaded]:
    loaded: list[Loaded] = []

    def serve(given: Loaded, *, rotate_master_key: bool) -> int:
        loaded.append(given)
        return 0

    monkeypatch.setattr("angelia.server.serve", serve)
    return loaded


def test_flags_become_settings(angelia: Angelia, served: list[Loaded], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANGELIA_PORT", "1")
    said = "serve --data-dir d --host ::1 --port 0 --workers 2 --public-url https://a.example --insecure"
    said += " --trusted-proxy 10.0.0.0/8 --trusted-proxy ::1 --log-level debug --log-format json --drain-seconds 5"
    assert angelia(*said.split()).code == 0
    (loaded,) = served
    settings = loaded.settings
    assert (settings.data_dir, settings.host, settings.port, settings.workers) == (Path("d"), "::1", 0, 2)
    assert settings.public_url == "https://a.example"
    assert settings.trusted_proxies == ("10.0.0.0/8", "::1")
    assert (settings.insecure, settings.log_level, settings.log_format) == (True, "debug", "json")
    assert settings.drain_seconds == 5
    assert loaded.origins["port"] == "--port"


def test_what_is_not_said_stays_as_it_was(
    angelia: Angelia, served: list[Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANGELIA_INSECURE", "true")
    monkeypatch.setenv("ANGELIA_TRUSTED_PROXIES", "10.1.1.1")
    angelia("serve")
    assert served[0].settings.insecure
    assert served[0].settings.trusted_proxies == ("10.1.1.1",)
    assert served[0].origins["host"] == "default"


@pytest.mark.parametrize("said", ["--port 70000", "--workers 0", "--log-level loud", "--port x", "--public-url x"])
def test_a_flag_that_does_not_work_is_a_usage_error(angelia: Angelia, served: list[Loaded], said: str) -> None:
    assert angelia("serve", *said.split()).code == 2
    assert served == []
