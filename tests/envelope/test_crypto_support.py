"""Without the post-quantum algorithms nothing starts, and the message says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.backends.openssl import backend

from angelia.envelope import crypto_support
from angelia.errors import AngeliaError, StartFailed
from angelia.mailbox import identity


def test_this_machine_has_what_envelopes_need() -> None:
    crypto_support.require()


@pytest.mark.parametrize(("probe", "name"), [("mlkem_supported", "ML-KEM"), ("mldsa_supported", "ML-DSA")])
def test_an_old_openssl_is_refused_by_name(probe: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, probe, lambda: False)
    with pytest.raises(crypto_support.UnsupportedCryptography, match=f"lacks {name} ") as refused:
        crypto_support.require()
    assert "pip install" in refused.value.hint


def test_no_agent_is_made_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "mldsa_supported", lambda: False)
    with pytest.raises(AngeliaError, match="lacks ML-DSA"):
        identity.create(tmp_path / "home", "alice")
    assert not (tmp_path / "home").exists()


async def test_no_server_starts_without_them(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "mlkem_supported", lambda: False)
    with pytest.raises(StartFailed, match="lacks ML-KEM"):
        await start()
