"""The settings, and where they came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.running import Angelia
from client.recorder import Recorder


def test_settings_say_where_they_came_from_and_hide_secrets(
    angelia: Angelia, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANGELIA_JWT_SECRET", "hunter2")
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:hunter2@h/d")
    (shell / "angelia.toml").write_text("port = 9000\n")
    ended = angelia("config", "show", "-v")
    rows = {line.split()[0]: line.split() for line in ended.out.splitlines()}
    assert rows["port"][1:3] == ["9000", "angelia.toml"]
    assert rows["jwt_secret"][1:3] == ["***", "ANGELIA_JWT_SECRET"]
    assert rows["database_url"][1] == "postgresql://u:***@h/d"
    assert "hunter2" not in ended.out
    assert json.loads(angelia("config", "show", "--json").out.splitlines()[0]).keys() == {
        "name",
        "value",
        "origin",
        "about",
    }


def test_the_servers_settings_are_asked_for(server: Recorder, angelia: Angelia) -> None:
    server.tell("GET", "/v1/settings", {"settings": [{"name": "port", "value": "1", "origin": "--port", "about": "x"}]})
    assert angelia("config", "show", "--server").out == "NAME  VALUE  FROM\nport  1      --port\n"


@pytest.mark.parametrize(
    ("shell_name", "sign"), [("bash", "complete -o"), ("zsh", "#compdef angelia"), ("fish", "complete --no-files")]
)
def test_completion_is_printed_for_each_shell(angelia: Angelia, shell_name: str, sign: str) -> None:
    ended = angelia("config", "completion", shell_name)
    assert ended.code == 0
    assert sign in ended.out
    assert "_ANGELIA_COMPLETE" in ended.out
