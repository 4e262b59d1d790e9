"""The page about adding a slice is complete: what it says, and nothing else, makes a server with another slice."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import angelia
from angelia.runtime_file import read_runtime
from server_process import ServerProcess

ROOT = Path(angelia.__file__).parent
PAGE = (ROOT.parents[1] / "docs/slices.md").read_text("utf-8")
# A file that the page names by itself on a line, and the block that follows; or a line for a file that is there.
_FILE = re.compile(r"^`([\w/.]+)`\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INTO = re.compile(r"^In `([\w/.]+)`[^\n]*\n(?:[^\n]+\n)?\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_SDK = """
import sys
from angelia.client import Client
from angelia.mailbox import identity
from pathlib import Path

who = identity.load(Path(sys.argv[2]), "alice", lambda: "")
with Client(sys.argv[1], identity=who) as client:
    client.notes.add(text="from the SDK")
    print([note.text for note in client.notes.list(limit=10).notes])
"""

_TICK = """
import asyncio, sys
from datetime import UTC, datetime, timedelta
from angelia.notes.slice import NotesSlice
from angelia.stores.ledger import Ledger
from angelia.stores.open_stores import Stores

async def main():
    ledger = await Ledger.open(sys.argv[1])
    (tick,) = NotesSlice(Stores(ledger, None, None)).ticks()
    for days in (0, 2):
        more = await tick.run(datetime.now(UTC) + timedelta(days=days))
        async with ledger.reading() as tx:
            print(more, await tx.fetchval("SELECT count(*) FROM notes"))
    await ledger.close()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package to which the page was applied."""
    source = tmp_path_factory.mktemp("recipe") / "src"
    copy = source / "angelia"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    source.parent.chmod(0o755)
    made = dict(_FILE.findall(PAGE))
    assert len(made) == 10
    number = len(list((copy / "stores/migrations").glob("*.up.sql"))) + 1
    for name, text in made.items():
        path = copy / name.replace("NNNN", f"{number:04}")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    (copy / "notes/__init__.py").touch()
    lines = dict(_INTO.findall(PAGE))
    assert set(lines) == {"app.py", "client/verbs.py", "client/client_namespaces.py", "cli/main.py"}
    slice_import = "from angelia.notes.slice import NotesSlice"
    add(copy / "app.py", lines["app.py"], after=r"        self\.runs = .*\n", imports=slice_import)
    add(copy / "client/verbs.py", f"\n\n{lines['client/verbs.py']}", imports="from angelia.notes import api as notes")
    namespace = lines["client/client_namespaces.py"]
    add(copy / "client/client_namespaces.py", f"\n{namespace}", after=r"        return RunVerbs\(.*\n")
    add(copy / "cli/main.py", lines["cli/main.py"], after=r'        Entry\("talk", "channel".*\n')
    return source


def add(path: Path, text: str, *, after: str = r"\Z", imports: str | None = None) -> None:
    before = path.read_text("utf-8")
    (place,) = [found.end() for found in re.finditer(after, before)]
    changed = before[:place] + text + before[place:]
    if imports is not None:
        changed = changed.replace("\nfrom angelia.", f"\n{imports}\nfrom angelia.", 1)
    path.write_text(changed, "utf-8")


@pytest.fixture(scope="module")
def server(package: Path, directory: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(directory / f"recipe-{secrets.token_hex(4)}")
    server.environ["PYTHONPATH"] = str(package)
    server.start()
    yield server
    server.stop()


def run(package: Path, home: Path, *command: str | Path) -> str:
    environ = {**os.environ, "PYTHONPATH": str(package), "ANGELIA_HOME": str(home)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_slice_made_from_the_recipe_is_served_called_and_ticks(
    package: Path, server: ServerProcess, tmp_path: Path
) -> None:
    command, url = Path(sys.executable).parent / "angelia", f"--url={server.start_url}"
    run(package, tmp_path, command, "agent", "new", "alice", "--register", url)
    kept = json.loads(run(package, tmp_path, command, "note", "add", "call bob", "--as", "alice", "--json", url))
    assert kept["text"] == "call bob"
    told = run(package, tmp_path, sys.executable, "-c", _SDK, server.start_url, tmp_path)
    assert told == "['call bob', 'from the SDK']\n"
    runtime = read_runtime(server.data_dir)
    assert runtime is not None
    assert run(package, tmp_path, sys.executable, "-c", _TICK, runtime.database_url) == "False 2\nFalse 0\n"


def test_the_application_grows_by_one_line_and_its_import(package: Path) -> None:
    before = (ROOT / "app.py").read_text("utf-8").splitlines()
    after = (package / "angelia/app.py").read_text("utf-8").splitlines()
    assert [line for line in after if line not in before] == [
        "from angelia.notes.slice import NotesSlice",
        "        self.notes = NotesSlice(stores)",
    ]
    assert len(after) == len(before) + 2
