"""The stores' programs are found, and copied when their user cannot reach them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from angelia.errors import StartFailed
from angelia.stores.embedded.binaries import locate_postgres, locate_valkey, postgres_for
from angelia.stores.embedded.datadir import DataDir

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can close a directory to the stores' user")


@needs_root
def test_programs_out_of_reach_are_copied_once_and_work(
    data_path: Path, place: Path, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    wheel, valkey = locate_postgres(None).parents[1], locate_valkey().parents[1]
    for source in (wheel, wheel.with_name(f"{wheel.name}.libs"), valkey):
        subprocess.run(["cp", "-a", source, closed], check=True)
    monkeypatch.syspath_prepend(closed)
    for name in (wheel.name, valkey.name):
        monkeypatch.delitem(sys.modules, name, raising=False)
    torn = data_path / "bin/postgres-18.4.new-1234"
    torn.mkdir(parents=True)

    first = start(data_path)
    copies = sorted(path.name for path in (data_path / "bin").iterdir())
    assert [name.split("-")[0] for name in copies] == ["postgres", "valkey"]
    assert Path(f"/proc/{first.stores.pids['postgres']}/exe").readlink().is_relative_to(data_path / "bin")
    made = (data_path / "bin" / copies[0]).stat().st_ctime_ns
    first.stop()

    start(data_path)
    assert (data_path / "bin" / copies[0]).stat().st_ctime_ns == made


def test_a_named_directory_without_postgres_is_refused(place: Path) -> None:
    with pytest.raises(StartFailed, match="ANGELIA_POSTGRES_BIN names"):
        locate_postgres(place)


def test_a_postgres_that_is_too_old_is_refused(place: Path) -> None:
    (place / "bin").mkdir()
    program = place / "bin/postgres"
    program.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 14.9'\n")
    program.chmod(0o755)
    data_dir = DataDir(place / "data")
    data_dir.prepare()
    try:
        with pytest.raises(StartFailed, match="needs 15 or newer"):
            postgres_for(data_dir, place / "bin")
    finally:
        data_dir.remove_runtime()
