"""Keys travel hidden where what is sent is written down, and are found again on the other side."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from angelia.pipeline.secret_options import forget_key, hidden, make_key, shown

VALUES = {"AWS_SECRET_ACCESS_KEY": "very/secret"}


@pytest.fixture(autouse=True)
def _no_key() -> Iterator[None]:
    yield
    forget_key()


def test_what_stays_on_this_machine_goes_as_it_is() -> None:
    assert shown(hidden(VALUES)) == VALUES


def test_with_a_key_nobody_reads_it_and_we_do(tmp_path: Path) -> None:
    make_key(tmp_path)
    assert "very" not in hidden(VALUES)
    assert shown(hidden(VALUES)) == VALUES


def test_another_process_reads_it_by_the_module_that_was_sent_along(tmp_path: Path) -> None:
    module = make_key(tmp_path)
    assert module.stat().st_mode & 0o077 == 0
    program = f"from angelia.pipeline.secret_options import shown; print(shown({hidden(VALUES)!r}))"
    told = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == str(VALUES)
