"""Data directories that the user of the stores can enter; under root, pytest's own are closed to it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from angelia.settings import Settings
from angelia.stores.embedded import EmbeddedStores
from angelia.stores.embedded.datadir import DataDir


@dataclass
class Started:
    """Running stores of a data directory."""

    data_dir: DataDir
    stores: EmbeddedStores
    database_url: str
    redis_url: str

    def stop(self) -> None:
        self.stores.stop()
        self.data_dir.remove_runtime()
        self.data_dir.release()


def _start(path: Path, **options: Any) -> Started:
    data_dir = DataDir(path)
    data_dir.prepare()
    data_dir.lock()
    try:
        settings = Settings(data_dir=path, **options.pop("flags", {}))
        told = [options.pop("tell")] if "tell" in options else []
        stores = EmbeddedStores(settings, data_dir, **options)
        return Started(data_dir, stores, *stores.start(*told))
    except BaseException:
        data_dir.remove_runtime()
        data_dir.release()
        raise


@pytest.fixture(scope="session")
def session_place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="angelia-test-", dir="/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="angelia-test-", dir="/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="session")
def start_for() -> Callable[..., Started]:
    """A function that starts stores in a directory. The caller must stop them."""
    return _start


@pytest.fixture(scope="session")
def template(session_place: Path) -> Path:
    """A data directory that was started once, to be copied: a start from scratch costs a second."""
    path = session_place / "template"
    _start(path).stop()
    return path


@pytest.fixture
def data_path(template: Path, place: Path) -> Path:
    """A stopped data directory of this test alone."""
    path = place / "data"
    subprocess.run(["cp", "-a", template, path], check=True)
    return path


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    """A function that starts stores in a directory; they are stopped at the end of the test."""
    started: list[Started] = []

    def start_one(path: Path, **options: Any) -> Started:
        started.append(_start(path, **options))
        return started[-1]

    yield start_one
    for one in started:
        one.stop()
